# Stage moe: dense against a mixture of experts. It explains, on models of its own, and chooses nothing.


use rule baseline_slice as moe_slice with:
    input:
        model=rules.fetch_model.output[0],
        winners=winners_before("moe"),
    output:
        manifest=f"{RESULTS}/slices/moe/{{slice}}.json",
    log:
        f"{RESULTS}/logs/moe/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/moe.{{slice}}.tsv"
    params:
        spec=lambda wildcards: measured_spec("moe", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),
