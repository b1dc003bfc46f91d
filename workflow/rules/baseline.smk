# Stage baseline: precision, and the distance from this machine's limits.


rule baseline_slice:
    input:
        model=rules.fetch_model.output[0],
    output:
        manifest=f"{RESULTS}/slices/baseline/{{slice}}.json",
    log:
        f"{RESULTS}/logs/baseline/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/baseline.{{slice}}.tsv"
    conda:
        ENV
    threads: measure_threads()
    resources:
        measure=1,
        gpu=int(IS_CUDA),
        mem_mb=6000,
        runtime=60,
    params:
        spec=lambda wildcards: spec_json("baseline", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),
    script:
        "../scripts/run_slice.py"


rule baseline_table:
    input:
        slices=manifests("baseline"),
    output:
        table=f"{RESULTS}/tables/baseline.parquet",
        chosen=f"{RESULTS}/chosen/baseline.yaml",
    log:
        f"{RESULTS}/logs/baseline/table.log",
    benchmark:
        f"{RESULTS}/benchmarks/baseline.table.tsv"
    conda:
        ENV
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        specs=stage_specs("baseline"),
        quality_floor=CONFIG["quality_floor"],
        prices=CONFIG["prices"],
        results_dir=results_dir,
        code=source_identity("select"),
    script:
        "../scripts/collect_stage.py"
