"""The stage on mixtures in small: the shipped pair, and random models of a third of the layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infopt.experiments.slice_spec import SliceSpec

_TINY = {
    "dtype": "float32",
    "kv_cache_memory_gib": 0.05,
    "max_model_len": 512,
    "max_num_seqs": 16,
    "block_size": 16,
}
_STEADY = {"kind": "synthetic", "num_requests": 8, "prompt_tokens": 32, "output_tokens": 8}
_REPEATS = 3


def moe_specs(model: str) -> list[SliceSpec]:
    """Return the slices of the miniature.

    Args:
        model: The strong model of the routing; the other slices run models of their own.
    """
    curve = {"prompt_tokens": 17, "output_tokens": 8, "repeats": _REPEATS}
    schemes = {
        "none": "none",
        "int8-experts-int4": "int8+experts-int4-rtn-g64",
        "int4": "int4-rtn-g64",
    }
    return [
        _slice(
            "pair",
            {"dense": {"model": "tiny-dense"}, "moe": {"model": "tiny-moe"}},
            quality_tier="screen",
            options={"batch_curve": {**curve, "batches": [1, 4, 16]}},
            single=True,
        ),
        _slice(
            "speed",
            {name: {} for name in _RANDOM},
            shared={"dtype": "auto", "max_model_len": 64},
            repeats=1,
            options={
                "batch_curve": {**curve, "batches": [1, 4, 16]},
                "random_models": _RANDOM,
            },
        ),
        _slice(
            "experts",
            {"uncounted": {"model": "tiny-moe"}, "counted": _COUNTED},
            options={
                "expert_load": {"prompt_tokens": 32, "output_tokens": 32, "batches": [1, 4, 16]}
            },
        ),
        _slice(
            "expert_quantization",
            {n: {"model": "tiny-moe", "quantization": s} for n, s in schemes.items()},
            repeats=1,
            quality_tier="screen",
        ),
        _slice(
            "routing",
            {"strong": {"model": model}, "cheap": {}},
            shared={"dtype": "auto", "quantization": "none", "max_model_len": 1024},
            repeats=1,
            options={"routing": _ROUTING},
        ),
    ]


_ROUTING = {
    "items": {"arithmetic": 40, "code": 16, "multilingual": 40},
    "policies": ["random", "length", "classes", "classifier", "cascade"],
    "test_share": 0.5,
}


_COUNTED = {"model": "tiny-moe", "expert_stats": True}
_RANDOM: dict[str, dict[str, int]] = {
    "dense": {"intermediate_size": 4096, "num_layers": 3},
    "moe-8": {"intermediate_size": 2048, "num_experts": 8, "top_k": 2, "num_layers": 3},
    "dense-large": {"intermediate_size": 16384, "num_layers": 3},
}


def _slice(
    name: str,
    candidates: Mapping[str, Mapping[str, Any]],
    *,
    shared: Mapping[str, Any] | None = None,
    single: bool = False,
    repeats: int = _REPEATS,
    **changes: Any,
) -> SliceSpec:
    return SliceSpec(
        stage="moe",
        name=name,
        model="tiny-dense",
        reference=next(iter(candidates)),
        base=_TINY,
        shared=shared or {},
        candidates=candidates,
        workloads={"load": _STEADY}
        | ({"single": {**_STEADY, "num_requests": 1}} if single else {}),
        repeats=repeats,
        slo="completion",
        decides=False,
        **changes,
    )
