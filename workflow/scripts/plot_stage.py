"""Rules *_figure: draw the figure of a stage that goes into the report."""

from infopt.experiments.figures import draw_stage
from infopt.experiments.job_log import job_log


def main(snakemake):
    """Draw and save."""
    with job_log(snakemake.log[0]):
        draw_stage(snakemake.params.stage, snakemake.input.table, snakemake.output[0])


if __name__ == "__main__":
    main(snakemake)
