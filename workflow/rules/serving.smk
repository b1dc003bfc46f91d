# Stage serving: how much load the configuration chosen so far takes behind an HTTP server.


use rule baseline_slice as serving_slice with:
    input:
        model=rules.fetch_model.output[0],
        winners=winners_before("serving"),
    output:
        manifest=f"{RESULTS}/slices/serving/{{slice}}.json",
    log:
        job=f"{RESULTS}/logs/serving/{{slice}}.log",
        server=f"{RESULTS}/logs/serving/{{slice}}.server.log",
    benchmark:
        f"{RESULTS}/benchmarks/serving.{{slice}}.tsv"
    params:
        spec=lambda wildcards: measured_spec("serving", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),


checkpoint serving_table:
    input:
        manifest=f"{RESULTS}/slices/serving/load.json",
        settled=winners_before("serving"),
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
