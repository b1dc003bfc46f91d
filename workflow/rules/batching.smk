# Stage batching: how requests share steps and memory. It starts from the precision of the baseline.


use rule baseline_slice as batching_slice with:
    input:
        model=rules.fetch_model.output[0],
        chosen=[rules.baseline_table.output.chosen],
    output:
        manifest=f"{RESULTS}/slices/batching/{{slice}}.json",
    log:
        f"{RESULTS}/logs/batching/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/batching.{{slice}}.tsv"
    params:
        spec=lambda wildcards: spec_json("batching", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),


use rule baseline_table as batching_table with:
    input:
        slices=manifests("batching"),
    output:
        table=f"{RESULTS}/tables/batching.parquet",
        chosen=f"{RESULTS}/chosen/batching.yaml",
    log:
        f"{RESULTS}/logs/batching/table.log",
    benchmark:
        f"{RESULTS}/benchmarks/batching.table.tsv"
    params:
        specs=stage_specs("batching"),
        quality_floor=CONFIG["quality_floor"],
        prices=CONFIG["prices"],
        results_dir=results_dir,
        code=source_identity("select"),
