"""Rules *_table: collect the records of a stage into a table and choose what it hands on."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Write table and choice."""
    params = snakemake.params
    with job_log(snakemake.log[0]):
        from infopt.experiments.choose import collect_stage

        collect_stage(
            snakemake.input.slices,
            [*params.specs],
            results_dir=params.results_dir,
            floor=params.quality_floor,
            prices=params.prices,
            table_path=snakemake.output.table,
            chosen_path=snakemake.output.chosen,
            winners_path=snakemake.output.winners,
        )


if __name__ == "__main__":
    main(snakemake)
