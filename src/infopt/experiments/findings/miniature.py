"""The stages in small: the same questions with fewer candidates, for a first look in a notebook."""

from __future__ import annotations

from typing import Any

from infopt.errors import ConfigError
from infopt.experiments.findings.miniature_kv import kv_specs
from infopt.experiments.findings.miniature_moe import moe_specs
from infopt.experiments.findings.miniature_power import power_specs
from infopt.experiments.findings.miniature_quantization import quantization_specs
from infopt.experiments.findings.miniature_speculative import speculative_specs
from infopt.experiments.slice_spec import SliceSpec

DEFAULT_MODEL = "smollm2-135m-instruct-q4_1"

_REPEATS = 3
_BASE: dict[str, Any] = {"kv_cache_memory_gib": 0.25, "max_model_len": 2048}
_STEADY = {"kind": "synthetic", "num_requests": 8, "prompt_tokens": 48, "output_tokens": 16}
_HEAVY = {
    "kind": "synthetic",
    "num_requests": 16,
    "prompt_tokens": 16,
    "output_tokens": {"kind": "zipf", "alpha": 1.0, "min": 2, "max": 64},
}
_MIXED = {
    "kind": "synthetic",
    "num_requests": 8,
    "prompt_tokens": {"kind": "lognormal", "median": 96, "sigma": 1.0, "min": 16, "max": 512},
    "output_tokens": 16,
    "arrivals": {"kind": "poisson", "rate": 12},
}
_ODD = {
    "kind": "synthetic",
    "num_requests": 8,
    "prompt_tokens": {"kind": "uniform", "min": 60, "max": 200},
    "output_tokens": 8,
}
_PREFIX = {
    "kind": "shared-prefix",
    "num_requests": 4,
    "num_groups": 1,
    "prefix_tokens": 600,
    "suffix_tokens": 16,
    "output_tokens": 4,
    "arrivals": {"kind": "constant", "rate": 2},
}
_SERVED = {
    "kind": "synthetic",
    "num_requests": 12,
    "prompt_tokens": {"kind": "lognormal", "median": 64, "sigma": 0.8, "min": 16, "max": 256},
    "output_tokens": {"kind": "zipf", "alpha": 1.0, "min": 4, "max": 32},
}


def miniature_specs(stage: str, model: str | None = None) -> list[SliceSpec]:
    """Return the slices of a stage's miniature.

    Args:
        stage: ``baseline``, ``batching``, ``quantization``, ``kv_cache``, ``speculative``,
            ``moe``, ``power`` or ``serving``.
        model: Model; None for the stage's default one.

    Raises:
        ConfigError: The stage has no miniature.
    """
    makers = {
        "baseline": _baseline,
        "batching": _batching,
        "kv_cache": kv_specs,
        "speculative": speculative_specs,
        "moe": moe_specs,
        "power": power_specs,
        "serving": _serving,
    }
    if stage == "quantization":
        return quantization_specs(model)
    if stage not in makers:
        raise ConfigError(
            f"The stage {stage!r} has no miniature.",
            field="stage",
            value=stage,
            remedy=f"Stages: {', '.join(makers)}, quantization.",
        )
    return makers[stage](model or DEFAULT_MODEL)


def _baseline(model: str) -> list[SliceSpec]:
    return [
        SliceSpec(
            stage="baseline",
            name="precision",
            model=model,
            reference="float32",
            base=_BASE,
            shared={},
            candidates={"float32": {"dtype": "float32"}, "bfloat16": {"dtype": "bfloat16"}},
            workloads={"load": _STEADY, "single": {**_STEADY, "num_requests": 2}},
            repeats=_REPEATS,
            slo="completion",
        )
    ]


def _batching(model: str) -> list[SliceSpec]:
    sizes = {f"seqs-{n}": {"max_num_seqs": n} for n in (1, 4, 8)}
    budgets = {f"tokens-{n}": {"max_num_batched_tokens": n} for n in (512, 64)}
    pages = {f"page-{n}": {"block_size": n} for n in (16, 64)}
    kinds = {name: {"scheduling": name} for name in ("static", "static_padded", "continuous")}
    caches = {f"cache-{word}": {"enable_prefix_caching": word == "on"} for word in ("off", "on")}
    return [
        _slice(model, "scheduling", _HEAVY, kinds, shared={"max_num_seqs": 4}),
        _slice(model, "max_num_seqs", _STEADY, sizes),
        _slice(model, "token_budget", _MIXED, budgets, load="open", criterion="e2e_p50"),
        _slice(model, "page_size", _ODD, pages),
        _slice(model, "prefix_cache", _PREFIX, caches, load="open", criterion="ttft_p50"),
    ]


def _serving(model: str) -> list[SliceSpec]:
    return [
        SliceSpec(
            stage="serving",
            name="load",
            model=model,
            reference="chosen",
            base=_BASE,
            shared={},
            candidates={"chosen": {}},
            workloads={"load": _SERVED},
            load="open",
            repeats=1,
            criterion="goodput",
            slo={"ttft_s": 1.0, "tpot_s": 0.1, "percentile": 90},
            options={
                "rates": [2, 4, 8, 16],
                "duration_s": 3,
                "target_share": 0.9,
                "num_bisections": 0,
                "warmup": 2,
                "endpoint": "completions",
                "timeout_s": 60,
                "port": 0,
            },
        )
    ]


def _slice(
    model: str,
    name: str,
    workload: dict[str, Any],
    candidates: dict[str, dict[str, Any]],
    **changes: Any,
) -> SliceSpec:
    values: dict[str, Any] = {"shared": {}, "repeats": _REPEATS, "slo": "completion"}
    return SliceSpec(
        stage="batching",
        name=name,
        model=model,
        reference=next(iter(candidates)),
        base=_BASE,
        candidates=candidates,
        workloads={"load": workload},
        **(values | changes),
    )
