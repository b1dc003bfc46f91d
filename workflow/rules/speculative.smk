# Stage speculative: guessing tokens, on the target that the stages before it chose.


rule train_draft_head:
    input:
        model=rules.fetch_model.output[0],
    output:
        f"{RESULTS}/models/draft_head.json",
    log:
        f"{RESULTS}/logs/train_draft_head.log",
    benchmark:
        f"{RESULTS}/benchmarks/speculative.draft_head.tsv"
    conda:
        ENV
    threads: measure_threads()
    resources:
        measure=1,
        gpu=int(IS_CUDA),
        mem_mb=6000,
        runtime=30,
    params:
        minutes=CONFIG["draft_head_minutes"],
        models_file=CONFIG["models_file"],
    script:
        "../scripts/train_draft_head.py"


use rule baseline_slice as speculative_slice with:
    input:
        model=rules.fetch_model.output[0],
        head=lambda wildcards: (
            rules.train_draft_head.output if needs_head(wildcards.slice) else []
        ),
        winners=winners_before("speculative"),
    output:
        manifest=f"{RESULTS}/slices/speculative/{{slice}}.json",
    log:
        f"{RESULTS}/logs/speculative/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/speculative.{{slice}}.tsv"
    params:
        spec=lambda wildcards: measured_spec("speculative", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),
