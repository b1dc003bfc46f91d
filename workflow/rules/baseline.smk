# Stage baseline: precision, and the distance from this machine's limits.


rule baseline_slice:
    input:
        model=rules.fetch_model.output[0],
    output:
        manifest=f"{RESULTS}/slices/baseline/{{slice}}.json",
    params:
        spec=lambda wildcards: spec_json("baseline", wildcards.slice),
        results_dir=RESULTS,
        code=source_identity("measure"),
    log:
        f"{RESULTS}/logs/baseline/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/baseline.{{slice}}.tsv"
    threads: measure_threads()
    resources:
        measure=1,
        gpu=int(IS_CUDA),
        mem_mb=6000,
        runtime=60,
    conda:
        ENV
    script:
        "../scripts/run_slice.py"


rule baseline_table:
    input:
        slices=manifests("baseline"),
    output:
        table=f"{RESULTS}/tables/baseline.parquet",
        chosen=f"{RESULTS}/chosen/baseline.yaml",
    params:
        specs=stage_specs("baseline"),
        quality_floor=CONFIG["quality_floor"],
        results_dir=RESULTS,
        code=source_identity("select"),
    log:
        f"{RESULTS}/logs/baseline/table.log",
    benchmark:
        f"{RESULTS}/benchmarks/baseline.table.tsv"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    conda:
        ENV
    script:
        "../scripts/collect_stage.py"


rule baseline_figure:
    input:
        table=rules.baseline_table.output.table,
    output:
        report(
            f"{RESULTS}/figures/baseline.png",
            caption="../report/baseline.rst",
            category="1 Baseline",
            labels={"figure": "Precision and roofline"},
        ),
    params:
        stage="baseline",
        code=source_identity("present"),
    log:
        f"{RESULTS}/logs/baseline/figure.log",
    benchmark:
        f"{RESULTS}/benchmarks/baseline.figure.tsv"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    conda:
        "../../envs/notebooks.yaml"
    script:
        "../scripts/plot_stage.py"
