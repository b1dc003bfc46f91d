"""The power stage in small: the machine's cores whole and divided, and two starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infopt.experiments.slice_spec import SliceSpec

_BASE = {"kv_cache_memory_gib": 0.1, "max_model_len": 512, "max_num_seqs": 8}
_STEADY = {"kind": "synthetic", "num_requests": 8, "prompt_tokens": 48, "output_tokens": 16}
_SINGLE = {"kind": "synthetic", "num_requests": 1, "prompt_tokens": 48, "output_tokens": 4}
_REPEATS = 3


def power_specs(model: str) -> list[SliceSpec]:
    """Return the slices of the miniature.

    Args:
        model: Model.
    """
    formats = {name: {"quantization": name} for name in ("none", "w8a8-dynamic")}
    starting = {"starts": 1, "idle_s": 0.2}
    return [
        _slice(model, "threads", _STEADY, {"counts": None}, decides=True),
        _slice(model, "replicas", _STEADY, {"counts": [2]}),
        _slice(model, "cold_start", _SINGLE, starting, candidates=formats, reference="none"),
    ]


def _slice(
    model: str,
    name: str,
    workload: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    candidates: Mapping[str, Mapping[str, Any]] | None = None,
    reference: str = "",
    decides: bool = False,
) -> SliceSpec:
    return SliceSpec(
        stage="power",
        name=name,
        model=model,
        reference=reference,
        base=_BASE,
        shared={},
        candidates=candidates or {},
        workloads={"load": workload},
        repeats=_REPEATS,
        slo="completion",
        decides=decides,
        options=options,
    )
