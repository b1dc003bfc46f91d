"""The last stage in small: a composition of three techniques against its rivals and baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infopt.experiments import select
from infopt.experiments.recommend import finalists_table, recommend
from infopt.experiments.select_spec import COMPOSED, UNOPTIMIZED
from infopt.experiments.slice_spec import SliceSpec
from infopt.results import read_json, write_json
from infopt.select import Recommendation, choose, write_recommendation

_SLO = {"ttft_s": 2.0, "percentile": 90}
_SEARCH = {
    "duration_s": 0.5,
    "pair_s": 0.2,
    "min_requests": 8,
    "target_share": 0.9,
    "num_bisections": 1,
}
_STATIC = {"batch_sizes": [4, 8], "fill_timeouts_s": []}
_SERVED = {
    "kind": "synthetic",
    "num_requests": 12,
    "prompt_tokens": {"kind": "lognormal", "median": 48, "sigma": 0.6, "min": 16, "max": 128},
    "output_tokens": {"kind": "zipf", "alpha": 1.0, "min": 4, "max": 32},
}
_OBJECTIVE = "throughput"


def run_select_miniature(model: str, results_dir: Path) -> tuple[Recommendation, Path]:
    """Measure the last stage in small and return its recommendation and table.

    Args:
        model: Model.
        results_dir: Where records go; what is there already is taken over.
    """
    paths = {name: results_dir / f"{name}.json" for name in ("capacity", "finalists", "validation")}
    spec = select.capacity_arms(_spec(model, "capacity"), _CHOSEN)
    write_json(paths["capacity"], select.run(spec, results_dir))
    rates = read_json(paths["capacity"])
    rate = rates["capacity"][COMPOSED]["rate_per_s"]
    spec = select.finalists(_spec(model, "finalists"), _CHOSEN, None, rate)
    write_json(paths["finalists"], select.run(spec, results_dir))
    tried = read_json(paths["finalists"])
    table = finalists_table([tried], results_dir)
    reference = f"select/finalists.{UNOPTIMIZED}"
    found = choose(table, _SLO, None, objective=_OBJECTIVE, reference=reference)
    write_recommendation(found, results_dir / "choice.yaml")
    spec = select.validation(_spec(model, "validation"), tried, rates, found.run)
    write_json(paths["validation"], select.run(spec, results_dir))
    table_path = results_dir / "select.parquet"
    recommendation = recommend(
        choice_path=results_dir / "choice.yaml",
        manifest_paths=list(paths.values()),
        quality_paths=[],
        results_dir=results_dir,
        slo=_SLO,
        recommendation_path=results_dir / "recommendation.yaml",
        table_path=table_path,
    )
    return recommendation, table_path


def _slice(engine: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    return {"engine": engine, "reference_engine": reference}


_CHOSEN = [
    {
        "slices": {
            "precision": _slice({"dtype": "bfloat16"}, {"dtype": "float32"}),
            "scheduling": _slice({"scheduling": "continuous"}, {"scheduling": "static"}),
            "max_num_seqs": _slice({"max_num_seqs": 8}, {"max_num_seqs": 2}),
        }
    }
]


def _spec(model: str, name: str) -> SliceSpec:
    options: dict[str, Any] = {"search": _SEARCH}
    if name == "capacity":
        options["static"] = _STATIC
    is_validation = name == "validation"
    return SliceSpec(
        stage="select",
        name=name,
        model=model,
        reference="",
        base={"kv_cache_memory_gib": 0.1, "max_model_len": 512},
        shared={},
        candidates={},
        workloads={"load": _SERVED},
        load="open",
        repeats=3,
        seeds=(11, 12, 13) if is_validation else (0,),
        criterion=_OBJECTIVE,
        slo=_SLO,
        options=options,
    )
