# Stage select: compose the winners, measure the composition, choose, validate, recommend.


rule finalists:
    input:
        model=rules.fetch_model.output[0],
        chosen=[rules.baseline_table.output.chosen, rules.batching_table.output.chosen],
    output:
        manifest=f"{RESULTS}/slices/select/finalists.json",
    params:
        spec=spec_json("select", "finalists"),
        ablations=CONFIG["select"]["ablations"],
        results_dir=RESULTS,
        code=source_identity("measure"),
    log:
        f"{RESULTS}/logs/select/finalists.log",
    benchmark:
        f"{RESULTS}/benchmarks/select.finalists.tsv"
    threads: measure_threads()
    resources:
        measure=1,
        gpu=int(IS_CUDA),
        mem_mb=6000,
        runtime=60,
    conda:
        ENV
    script:
        "../scripts/run_finalists.py"


rule choose_finalist:
    input:
        manifests=[rules.finalists.output.manifest, *manifests("baseline")],
    output:
        f"{RESULTS}/chosen/select.yaml",
    params:
        slo=CONFIG["slo"],
        quality_floor=CONFIG["quality_floor"],
        objective=CONFIG["select"]["objective"],
        results_dir=RESULTS,
        code=source_identity("select"),
    log:
        f"{RESULTS}/logs/select/choose.log",
    benchmark:
        f"{RESULTS}/benchmarks/select.choose.tsv"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    conda:
        ENV
    script:
        "../scripts/choose_finalist.py"


rule validation:
    input:
        model=rules.fetch_model.output[0],
        finalists=rules.finalists.output.manifest,
        choice=rules.choose_finalist.output[0],
    output:
        manifest=f"{RESULTS}/slices/select/validation.json",
    params:
        spec=spec_json("select", "validation"),
        results_dir=RESULTS,
        code=source_identity("measure"),
    log:
        f"{RESULTS}/logs/select/validation.log",
    benchmark:
        f"{RESULTS}/benchmarks/select.validation.tsv"
    threads: measure_threads()
    resources:
        measure=1,
        gpu=int(IS_CUDA),
        mem_mb=6000,
        runtime=60,
    conda:
        ENV
    script:
        "../scripts/run_validation.py"


rule recommend:
    input:
        choice=rules.choose_finalist.output[0],
        finalists=rules.finalists.output.manifest,
        validation=rules.validation.output.manifest,
    output:
        recommendation=report(
            f"{RESULTS}/recommendation.yaml",
            caption="../report/recommendation.rst",
            category="0 Recommendation",
            labels={"figure": "Configuration and reasons"},
        ),
        table=f"{RESULTS}/tables/select.parquet",
    params:
        slo=CONFIG["slo"],
        results_dir=RESULTS,
        code=source_identity("select"),
    log:
        f"{RESULTS}/logs/select/recommend.log",
    benchmark:
        f"{RESULTS}/benchmarks/select.recommend.tsv"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    conda:
        ENV
    script:
        "../scripts/recommend.py"


use rule baseline_figure as select_figure with:
    input:
        table=rules.recommend.output.table,
    output:
        report(
            f"{RESULTS}/figures/select.png",
            caption="../report/select.rst",
            category="0 Recommendation",
            labels={"figure": "Finalists: Pareto front"},
        ),
    params:
        stage="select",
        code=source_identity("present"),
    log:
        f"{RESULTS}/logs/select/figure.log",
    benchmark:
        f"{RESULTS}/benchmarks/select.figure.tsv"
