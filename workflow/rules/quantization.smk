# Stage quantization: weight formats. It starts from the precision and the batching chosen so far.


use rule baseline_slice as quantization_slice with:
    input:
        model=rules.fetch_model.output[0],
        winners=winners_before("quantization"),
    output:
        manifest=f"{RESULTS}/slices/quantization/{{slice}}.json",
    log:
        f"{RESULTS}/logs/quantization/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/quantization.{{slice}}.tsv"
    params:
        spec=lambda wildcards: measured_spec("quantization", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),
