# The table of a stage, what it chose and why, and the winners alone, which the next stages start from.
#
# Checkpoints, so that what follows is looked at again once the winners are known: where they are the same as before, nothing that
# starts from them runs. After a plain rule all of it would run as soon as another objective or floor judges the same records anew.
# Only jobs with an input from the checkpoint itself are looked at again. So whatever comes later in the chain names the winners before
# it as `settled`, even where it reads its own stage alone.


checkpoint stage_table:
    input:
        slices=lambda wildcards: manifests(wildcards.stage),
        settled=lambda wildcards: winners_before(wildcards.stage),
    output:
        table=f"{RESULTS}/tables/{{stage}}.parquet",
        chosen=f"{RESULTS}/chosen/{{stage}}.yaml",
        winners=f"{RESULTS}/winners/{{stage}}.yaml",
    log:
        f"{RESULTS}/logs/{{stage}}/table.log",
    benchmark:
        f"{RESULTS}/benchmarks/{{stage}}.table.tsv"
    wildcard_constraints:
        stage="|".join((*CHAIN, "moe")),
    conda:
        ENV
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        specs=lambda wildcards: stage_specs(wildcards.stage),
        quality_floor=lambda wildcards: stage_floor(wildcards.stage),
        prices=CONFIG["prices"],
        results_dir=results_dir,
        code=source_identity("select"),
    script:
        "../scripts/collect_stage.py"
