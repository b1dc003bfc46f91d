"""Rules *_slice: run one slice of a stage and write its manifest."""

from infopt.experiments.job_log import job_log


def main(snakemake):
    """Run what is missing; the manifest is written only when every candidate has succeeded."""
    params = snakemake.params
    with job_log(snakemake.log[0]):
        from infopt.experiments.slices import write_manifest
        from infopt.experiments.spec import SliceSpec
        from infopt.experiments.stages import chosen_options, run_stage

        spec = SliceSpec.from_json(params.spec)
        for path in snakemake.input.get("winners", []):
            spec = spec.inherit(chosen_options(path))
        manifest = run_stage(spec, params.results_dir, num_threads=snakemake.threads)
        write_manifest(manifest, snakemake.output.manifest)


if __name__ == "__main__":
    main(snakemake)
