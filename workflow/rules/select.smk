# Stage select: compose the winners, measure the composition, choose, validate, recommend.


rule capacity:
    input:
        model=rules.fetch_model.output[0],
        winners=winners_before("select"),
    output:
        manifest=f"{RESULTS}/slices/select/capacity.json",
    log:
        f"{RESULTS}/logs/select/capacity.log",
    benchmark:
        f"{RESULTS}/benchmarks/select.capacity.tsv"
    conda:
        ENV
    threads: measure_threads()
    resources:
        measure=1,
        gpu=int(IS_CUDA),
        mem_mb=6000,
        runtime=60,
    params:
        spec=measured_spec("select", "capacity"),
        results_dir=results_dir,
        code=source_identity("measure"),
    script:
        "../scripts/run_capacity.py"


rule finalists:
    input:
        model=rules.fetch_model.output[0],
        winners=winners_before("select"),
        capacity=rules.capacity.output.manifest,
    output:
        manifest=f"{RESULTS}/slices/select/finalists.json",
    log:
        f"{RESULTS}/logs/select/finalists.log",
    benchmark:
        f"{RESULTS}/benchmarks/select.finalists.tsv"
    conda:
        ENV
    threads: measure_threads()
    resources:
        measure=1,
        gpu=int(IS_CUDA),
        mem_mb=6000,
        runtime=60,
    params:
        spec=measured_spec("select", "finalists"),
        ablations=CONFIG["select"]["ablations"],
        results_dir=results_dir,
        code=source_identity("measure"),
    script:
        "../scripts/run_finalists.py"


rule choose_finalist:
    input:
        manifests=[
            rules.finalists.output.manifest,
            *manifests("baseline"),
            *manifests("quantization"),
            *manifests("kv_cache"),
        ],
    output:
        f"{RESULTS}/chosen/select.yaml",
    log:
        f"{RESULTS}/logs/select/choose.log",
    benchmark:
        f"{RESULTS}/benchmarks/select.choose.tsv"
    conda:
        ENV
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        slo=CONFIG["slo"],
        quality_floor=CONFIG["quality_floor"],
        objective=CONFIG["select"]["objective"],
        prices=CONFIG["prices"],
        results_dir=results_dir,
        code=source_identity("select"),
    script:
        "../scripts/choose_finalist.py"


rule validation:
    input:
        model=rules.fetch_model.output[0],
        finalists=rules.finalists.output.manifest,
        capacity=rules.capacity.output.manifest,
        choice=rules.choose_finalist.output[0],
    output:
        manifest=f"{RESULTS}/slices/select/validation.json",
    log:
        f"{RESULTS}/logs/select/validation.log",
    benchmark:
        f"{RESULTS}/benchmarks/select.validation.tsv"
    conda:
        ENV
    threads: measure_threads()
    resources:
        measure=1,
        gpu=int(IS_CUDA),
        mem_mb=6000,
        runtime=60,
    params:
        spec=measured_spec("select", "validation"),
        results_dir=results_dir,
        code=source_identity("measure"),
    script:
        "../scripts/run_validation.py"


rule recommend:
    input:
        choice=rules.choose_finalist.output[0],
        finalists=rules.finalists.output.manifest,
        capacity=rules.capacity.output.manifest,
        baselines=[
            *manifests("baseline"),
            *manifests("quantization"),
            *manifests("kv_cache"),
        ],
        validation=rules.validation.output.manifest,
    output:
        recommendation=report(
            f"{RESULTS}/recommendation.yaml",
            caption="../report/recommendation.rst",
            category="recommendation",
            labels={"question": "what to serve, and why", "type": "yaml"},
        ),
        table=f"{RESULTS}/tables/select.parquet",
    log:
        f"{RESULTS}/logs/select/recommend.log",
    benchmark:
        f"{RESULTS}/benchmarks/select.recommend.tsv"
    conda:
        ENV
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        slo=CONFIG["slo"],
        prices=CONFIG["prices"],
        results_dir=results_dir,
        code=source_identity("select"),
    script:
        "../scripts/recommend.py"
