# Stage batching: how requests share steps and memory. It starts from the precision of the baseline.


use rule baseline_slice as batching_slice with:
    input:
        model=rules.fetch_model.output[0],
        winners=winners_before("batching"),
    output:
        manifest=f"{RESULTS}/slices/batching/{{slice}}.json",
    log:
        f"{RESULTS}/logs/batching/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/batching.{{slice}}.tsv"
    params:
        spec=lambda wildcards: measured_spec("batching", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),
