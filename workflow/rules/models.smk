# Stage models: have the model on this machine, with its checksum verified.


rule fetch_model:
    input:
        model_files,
    output:
        f"{RESULTS}/models/model.json",
    params:
        model=CONFIG["model"],
        models_file=CONFIG["models_file"],
        results_dir=RESULTS,
        version=INFOPT_VERSION,
    log:
        f"{RESULTS}/logs/fetch_model.log",
    benchmark:
        f"{RESULTS}/benchmarks/fetch_model.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    conda:
        ENV
    script:
        "../scripts/fetch_model.py"
