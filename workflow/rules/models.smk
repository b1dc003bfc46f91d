# Stage models: have the model on this machine, with its checksum verified.


rule fetch_model:
    input:
        model_files,
    output:
        f"{RESULTS}/models/model.json",
    log:
        f"{RESULTS}/logs/fetch_model.log",
    benchmark:
        f"{RESULTS}/benchmarks/fetch_model.tsv"
    conda:
        ENV
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        model=CONFIG["model"],
        models_file=CONFIG["models_file"],
        results_dir=results_dir,
        version=INFOPT_VERSION,
    script:
        "../scripts/fetch_model.py"
