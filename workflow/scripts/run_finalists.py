"""Rule finalists: measure the composition of all winners and its rivals."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Run what is missing."""
    params = snakemake.params
    with job_log(snakemake.log[0]):
        from infopt.experiments.slices import write_manifest
        from infopt.experiments.spec import SliceSpec
        from infopt.experiments.stages import finalists_spec, run_stage

        spec = SliceSpec.from_json(params.spec)
        inputs = snakemake.input
        spec = finalists_spec(spec, inputs.winners, params.ablations, inputs.capacity)
        manifest = run_stage(spec, params.results_dir, num_threads=snakemake.threads)
        write_manifest(manifest, snakemake.output.manifest)


if __name__ == "__main__":
    main(snakemake)
