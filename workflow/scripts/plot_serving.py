"""Rule serving_figure: draw what a server does as its load rises."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Draw and save."""
    with job_log(snakemake.log[0]):
        from infopt.bench.slo import SLO
        from infopt.experiments.figures import draw_serving

        draw_serving(
            snakemake.input.table,
            snakemake.input.chosen,
            SLO.from_spec(snakemake.params.slo).limits,
            snakemake.output[0],
        )


if __name__ == "__main__":
    main(snakemake)
