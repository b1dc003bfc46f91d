"""Rule run_summary: how long each part took against its budget."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Write the table of durations."""
    with job_log(snakemake.log[0]):
        from infopt.experiments.summary import write_summary

        write_summary(
            model_path=snakemake.input.model,
            manifest_paths=snakemake.input.manifests,
            notebook_paths=snakemake.params.notebooks,
            budget_s=snakemake.params.budget_s,
            path=snakemake.output[0],
        )


if __name__ == "__main__":
    main(snakemake)
