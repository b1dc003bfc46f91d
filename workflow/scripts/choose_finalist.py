"""Rule choose_finalist: pick among the finalists, before the choice is validated."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Write the choice."""
    params = snakemake.params
    with job_log(snakemake.log[0]):
        from infopt.experiments.recommend import choose_finalist

        choose_finalist(
            snakemake.input.manifests,
            results_dir=params.results_dir,
            slo=params.slo,
            floor=params.quality_floor,
            objective=params.objective,
            prices=params.prices,
            path=snakemake.output[0],
        )


if __name__ == "__main__":
    main(snakemake)
