"""Rule power_table: collect the records of the stage and choose the size of an instance."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Write table and choice."""
    params = snakemake.params
    with job_log(snakemake.log[0]):
        from infopt.experiments.power.collect import collect_power

        collect_power(
            snakemake.input.slices,
            [*params.specs],
            results_dir=params.results_dir,
            prices=params.prices,
            table_path=snakemake.output.table,
            chosen_path=snakemake.output.chosen,
            winners_path=snakemake.output.winners,
        )


if __name__ == "__main__":
    main(snakemake)
