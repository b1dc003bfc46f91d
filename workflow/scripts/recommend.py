"""Rule recommend: write the recommendation with the result of its validation."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Write recommendation and table."""
    params, inputs = snakemake.params, snakemake.input
    with job_log(snakemake.log[0]):
        from infopt.experiments.recommend import recommend

        recommend(
            choice_path=inputs.choice,
            manifest_paths=[inputs.capacity, inputs.finalists, inputs.validation],
            quality_paths=inputs.baselines,
            results_dir=params.results_dir,
            slo=params.slo,
            prices=params.prices,
            recommendation_path=snakemake.output.recommendation,
            table_path=snakemake.output.table,
        )


if __name__ == "__main__":
    main(snakemake)
