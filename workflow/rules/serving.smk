# Stage serving: how much load the configuration chosen so far takes behind an HTTP server.


use rule baseline_slice as serving_slice with:
    input:
        model=rules.fetch_model.output[0],
        chosen=[
            rules.baseline_table.output.chosen,
            rules.batching_table.output.chosen,
            rules.quantization_table.output.chosen,
            rules.kv_cache_table.output.chosen,
            rules.speculative_table.output.chosen,
            rules.power_table.output.chosen,
        ],
    output:
        manifest=f"{RESULTS}/slices/serving/{{slice}}.json",
    log:
        job=f"{RESULTS}/logs/serving/{{slice}}.log",
        server=f"{RESULTS}/logs/serving/{{slice}}.server.log",
    benchmark:
        f"{RESULTS}/benchmarks/serving.{{slice}}.tsv"
    params:
        spec=lambda wildcards: spec_json("serving", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),


rule serving_table:
    input:
        manifest=f"{RESULTS}/slices/serving/load.json",
    output:
        table=f"{RESULTS}/tables/serving.parquet",
        chosen=f"{RESULTS}/chosen/serving.yaml",
    log:
        f"{RESULTS}/logs/serving/table.log",
    benchmark:
        f"{RESULTS}/benchmarks/serving.table.tsv"
    conda:
        ENV
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        results_dir=results_dir,
        prices=CONFIG["prices"],
        code=source_identity("select"),
    script:
        "../scripts/collect_serving.py"
