"""Rule power_figure: draw a question of the stage, or why this machine does not have it."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Draw and save; nothing here needs a display."""
    with job_log(snakemake.log[0]):
        from infopt.experiments.figures import draw_power

        draw_power(
            snakemake.input.table,
            snakemake.input.chosen,
            snakemake.wildcards.slice,
            snakemake.output[0],
        )


if __name__ == "__main__":
    main(snakemake)
