# From a configuration to a recommendation: `snakemake --cores all`.
# models -> baseline -> batching -> quantization -> kv_cache -> speculative -> moe -> power -> serving -> select -> notebooks; each is a
# rule file in workflow/rules, and what its jobs do is in src/infopt/experiments. Settings: config/config.yaml (see config/README.md).
from snakemake.utils import min_version

min_version("9.20")


include: "workflow/rules/common.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/baseline.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/batching.smk"
include: "workflow/rules/quantization.smk"
include: "workflow/rules/kv_cache.smk"
include: "workflow/rules/speculative.smk"
include: "workflow/rules/moe.smk"
include: "workflow/rules/power.smk"
include: "workflow/rules/serving.smk"
include: "workflow/rules/select.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/notebooks.smk"


# On a cluster these run where Snakemake runs: they take seconds, or need the internet.
localrules:
    all,
    fetch_model,
    stage_table,
    power_table,
    serving_table,
    choose_finalist,
    recommend,
    slice_figure,
    power_figure,
    serving_figure,
    finalists_figure,
    run_summary,


report: "workflow/report/workflow.rst"


rule all:
    default_target: True
    input:
        f"{RESULTS}/recommendation.yaml",
        f"{RESULTS}/tables/durations.csv",
        figures(),
        expand(f"{RESULTS}/notebooks/{{name}}.html", name=CONFIG["notebooks"]["names"]),
