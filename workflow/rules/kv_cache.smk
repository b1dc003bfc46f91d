# Stage kv_cache: compression of keys and values. It starts from precision, batching and weight format.


use rule baseline_slice as kv_cache_slice with:
    input:
        model=rules.fetch_model.output[0],
        chosen=[
            rules.baseline_table.output.chosen,
            rules.batching_table.output.chosen,
            rules.quantization_table.output.chosen,
        ],
    output:
        manifest=f"{RESULTS}/slices/kv_cache/{{slice}}.json",
    log:
        f"{RESULTS}/logs/kv_cache/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/kv_cache.{{slice}}.tsv"
    params:
        spec=lambda wildcards: spec_json("kv_cache", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),


use rule baseline_table as kv_cache_table with:
    input:
        slices=manifests("kv_cache"),
    output:
        table=f"{RESULTS}/tables/kv_cache.parquet",
        chosen=f"{RESULTS}/chosen/kv_cache.yaml",
    log:
        f"{RESULTS}/logs/kv_cache/table.log",
    benchmark:
        f"{RESULTS}/benchmarks/kv_cache.table.tsv"
    params:
        specs=stage_specs("kv_cache"),
        quality_floor=CONFIG["quality_floor"],
        prices=CONFIG["prices"],
        results_dir=results_dir,
        code=source_identity("select"),
