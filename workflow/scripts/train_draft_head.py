"""Rule train_draft_head: train a head that guesses for the model."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Note where the head is and how its training went."""
    params = snakemake.params
    with job_log(snakemake.log[0]):
        from infopt.results import read_json, write_json
        from infopt.training.kept_head import train

        head = train(
            read_json(snakemake.input.model),
            params.minutes,
            models_file=params.models_file,
            num_threads=snakemake.threads,
        )
        write_json(snakemake.output[0], head)


if __name__ == "__main__":
    main(snakemake)
