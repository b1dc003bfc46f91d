# What each notebook reads: a notebook runs again when that has changed.
NOTEBOOK_STAGES = {
    "10_roofline": ("baseline",),
    "20_batching": ("batching", "serving"),
    "30_quantization": ("quantization",),
    "40_kv_cache": ("kv_cache",),
    "50_speculative": ("speculative",),
    "60_moe_routing": ("moe",),
    "70_power_cost": ("power",),
}
"""Stages that a notebook reads, and nothing else; one that is not listed may read them all."""


def notebook_results(wildcards):
    """Return what a notebook reads."""
    stages = NOTEBOOK_STAGES.get(wildcards.name, (*STAGES, "serving"))
    paths = (f"{RESULTS}/tables/{{stage}}.parquet", f"{RESULTS}/chosen/{{stage}}.yaml")
    more = (
        [] if wildcards.name in NOTEBOOK_STAGES else [f"{RESULTS}/recommendation.yaml"]
    )
    return expand(paths, stage=stages) + more


def notebook_settled(wildcards):
    """Return the winners before all stages that a notebook reads."""
    stages = NOTEBOOK_STAGES.get(wildcards.name, ("select",))
    return sorted({path for stage in stages for path in winners_before(stage)})
