# Stage quantization: weight formats. It starts from the precision and the batching chosen so far.


use rule baseline_slice as quantization_slice with:
    input:
        model=rules.fetch_model.output[0],
        chosen=[rules.baseline_table.output.chosen, rules.batching_table.output.chosen],
    output:
        manifest=f"{RESULTS}/slices/quantization/{{slice}}.json",
    log:
        f"{RESULTS}/logs/quantization/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/quantization.{{slice}}.tsv"
    params:
        spec=lambda wildcards: spec_json("quantization", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),


use rule baseline_table as quantization_table with:
    input:
        slices=manifests("quantization"),
    output:
        table=f"{RESULTS}/tables/quantization.parquet",
        chosen=f"{RESULTS}/chosen/quantization.yaml",
    log:
        f"{RESULTS}/logs/quantization/table.log",
    benchmark:
        f"{RESULTS}/benchmarks/quantization.table.tsv"
    params:
        specs=stage_specs("quantization"),
        quality_floor=CONFIG["quality_floor"],
        prices=CONFIG["prices"],
        results_dir=results_dir,
        code=source_identity("select"),
