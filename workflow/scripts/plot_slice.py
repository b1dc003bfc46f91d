"""Rule slice_figure: draw the candidates of a slice against their reference."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Draw and save; nothing here needs a display."""
    with job_log(snakemake.log[0]):
        from infopt.experiments.figures import draw_slice

        draw_slice(
            snakemake.input.table,
            snakemake.wildcards.slice,
            snakemake.params.criterion,
            snakemake.output[0],
        )


if __name__ == "__main__":
    main(snakemake)
