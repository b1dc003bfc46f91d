# Stage moe: dense against a mixture of experts. It explains, on models of its own, and chooses nothing.


use rule baseline_slice as moe_slice with:
    input:
        model=rules.fetch_model.output[0],
        chosen=[
            rules.baseline_table.output.chosen,
            rules.batching_table.output.chosen,
            rules.quantization_table.output.chosen,
            rules.kv_cache_table.output.chosen,
            rules.speculative_table.output.chosen,
        ],
    output:
        manifest=f"{RESULTS}/slices/moe/{{slice}}.json",
    log:
        f"{RESULTS}/logs/moe/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/moe.{{slice}}.tsv"
    params:
        spec=lambda wildcards: spec_json("moe", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),


use rule baseline_table as moe_table with:
    input:
        slices=manifests("moe"),
    output:
        table=f"{RESULTS}/tables/moe.parquet",
        chosen=f"{RESULTS}/chosen/moe.yaml",
    log:
        f"{RESULTS}/logs/moe/table.log",
    benchmark:
        f"{RESULTS}/benchmarks/moe.table.tsv"
    params:
        specs=stage_specs("moe"),
        quality_floor=CONFIG["quality_floor"],
        results_dir=results_dir,
        code=source_identity("select"),
