"""Rule validation: try the chosen finalist on seeds that the search has not seen."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Run what is missing; without a feasible finalist there is nothing to run."""
    params, inputs = snakemake.params, snakemake.input
    with job_log(snakemake.log[0]):
        from infopt.experiments.slices import write_manifest
        from infopt.experiments.spec import SliceSpec
        from infopt.experiments.stages import run_stage, validation_spec

        spec = SliceSpec.from_json(params.spec)
        spec = validation_spec(spec, inputs.finalists, inputs.capacity, inputs.choice)
        manifest = run_stage(spec, params.results_dir, num_threads=snakemake.threads)
        write_manifest(manifest, snakemake.output.manifest)


if __name__ == "__main__":
    main(snakemake)
