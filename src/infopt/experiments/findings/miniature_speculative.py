"""The speculative stage in small: two methods on the ends of the scale of traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infopt.experiments.slice_spec import SliceSpec

_BASE = {"kv_cache_memory_gib": 0.25, "max_model_len": 1024, "max_num_seqs": 8}
_EDIT = {"kind": "edit", "num_requests": 2, "text_tokens": 96, "output_tokens": 40}
_CHAT = {"kind": "chat", "num_requests": 2, "output_tokens": 40}
_SERVED = {
    "kind": "synthetic",
    "num_requests": 8,
    "prompt_tokens": {"kind": "lognormal", "median": 64, "sigma": 0.8, "min": 16, "max": 256},
    "output_tokens": 16,
}
_REPEATS = 3


def speculative_specs(model: str) -> list[SliceSpec]:
    """Return the slices of the miniature.

    Args:
        model: Model.
    """
    off, auto = {"speculative": None}, {"speculative": {"method": "auto"}}
    suffix = {"speculative": {"method": "suffix"}}
    cells = [_cell("edit", _EDIT, 1, 4), _cell("chat", _CHAT, 1, 4)]
    return [
        _slice(model, "speculation", _SERVED, {"off": off, "auto": auto}, prefers="auto"),
        _slice(
            model,
            "methods",
            _EDIT,
            {"off": off, "suffix": suffix, "auto": auto},
            decides=False,
            options={"cells": cells},
        ),
    ]


def _cell(workload: str, options: Mapping[str, Any], *batches: int) -> dict[str, Any]:
    return {
        "workload": workload,
        "batches": list(batches),
        "temperatures": [0.0],
        "options": dict(options),
    }


def _slice(
    model: str,
    name: str,
    workload: Mapping[str, Any],
    candidates: Mapping[str, Mapping[str, Any]],
    **changes: Any,
) -> SliceSpec:
    return SliceSpec(
        stage="speculative",
        name=name,
        model=model,
        reference="off",
        base=_BASE,
        shared={},
        candidates=candidates,
        workloads={"load": workload},
        repeats=_REPEATS,
        slo="completion",
        **changes,
    )
