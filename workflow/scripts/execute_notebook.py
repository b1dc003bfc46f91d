"""Rule execute_notebook: run a notebook on the results of this run."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Execute and render; the executed copy is a log, so a failed one is kept to be looked at."""
    params = snakemake.params
    with job_log(snakemake.log.job):
        from pathlib import Path

        from infopt.notebooks import run_notebook

        run_notebook(
            snakemake.input.notebook,
            snakemake.log.notebook,
            parameters={"results_dir": str(Path(params.results_dir).resolve())},
            html_path=snakemake.output.html,
            timeout_s=params.timeout_s,
        )


if __name__ == "__main__":
    main(snakemake)
