# Stage kv_cache: compression of keys and values. It starts from precision, batching and weight format.


use rule baseline_slice as kv_cache_slice with:
    input:
        model=rules.fetch_model.output[0],
        winners=winners_before("kv_cache"),
    output:
        manifest=f"{RESULTS}/slices/kv_cache/{{slice}}.json",
    log:
        f"{RESULTS}/logs/kv_cache/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/kv_cache.{{slice}}.tsv"
    params:
        spec=lambda wildcards: measured_spec("kv_cache", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),
