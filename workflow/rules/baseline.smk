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
        spec=lambda wildcards: measured_spec("baseline", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),
    script:
        "../scripts/run_slice.py"
