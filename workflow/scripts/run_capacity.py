"""Rule capacity: search the highest rate of the composition and of the baselines."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Search what is missing."""
    params = snakemake.params
    with job_log(snakemake.log[0]):
        from infopt.experiments.slices import write_manifest
        from infopt.experiments.spec import SliceSpec
        from infopt.experiments.stages import capacity_spec, run_stage

        spec = capacity_spec(SliceSpec.from_json(params.spec), snakemake.input.winners)
        manifest = run_stage(spec, params.results_dir, num_threads=snakemake.threads)
        write_manifest(manifest, snakemake.output.manifest)


if __name__ == "__main__":
    main(snakemake)
