"""Rule finalists_figure: draw the finalists by latency and throughput."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Draw and save."""
    with job_log(snakemake.log[0]):
        from infopt.experiments.figures import draw_finalists

        draw_finalists(snakemake.input.table, snakemake.input.recommendation, snakemake.output[0])


if __name__ == "__main__":
    main(snakemake)
