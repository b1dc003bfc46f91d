"""Rule fetch_model: have the model on this machine and describe it."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Write a description of the model."""
    params = snakemake.params
    with job_log(snakemake.log[0]):
        from infopt.experiments.fetch import fetch
        from infopt.results import write_json

        write_json(snakemake.output[0], fetch(params.model, params.results_dir, params.models_file))


if __name__ == "__main__":
    main(snakemake)
