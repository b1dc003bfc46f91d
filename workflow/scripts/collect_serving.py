"""Rule serving_table: collect the records of the load sweep and hand on the saturation point."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Write table and saturation point."""
    with job_log(snakemake.log[0]):
        from infopt.experiments.serving_record import collect_serving

        collect_serving(
            snakemake.input.manifest,
            results_dir=snakemake.params.results_dir,
            prices=snakemake.params.prices,
            table_path=snakemake.output.table,
            chosen_path=snakemake.output.chosen,
        )


if __name__ == "__main__":
    main(snakemake)
