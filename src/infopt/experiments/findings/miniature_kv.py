"""The KV-cache stage in small: one candidate of each kind, few prompts, a small pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infopt.experiments.slice_spec import SliceSpec

_BASE = {"kv_cache_memory_gib": 0.25, "max_model_len": 2048, "max_num_seqs": 8}
_PROMPTS = {"kind": "long-context", "num_requests": 2, "prompt_tokens": 384, "output_tokens": 8}
_TURNS = {
    "kind": "multi-turn",
    "num_conversations": 3,
    "num_turns": 3,
    "system_tokens": 96,
    "user_tokens": 32,
    "answer_tokens": 32,
    "output_tokens": 2,
}
_LONG_TEXT = {
    "context": 320,
    "num_scored": 24,
    "num_windows": 2,
    "passkeys": 8,
    "passkey_lengths": [256, 320],
    "dialogues": 2,
}
_POOL = {
    "num_kv_pages": 140,
    "block_size": 16,
    "max_num_batched_tokens": 256,
    "enable_prefix_caching": False,
    "preemption": "swap",
    "kv_group_size": 32,
    "kv_residual": 48,
    "max_num_seqs": 16,
}


def kv_specs(model: str) -> list[SliceSpec]:
    """Return the slices of the miniature.

    Args:
        model: What runs.
    """
    forms: dict[str, dict[str, Any]] = {
        "auto": {"kv_cache_dtype": "auto"},
        "kv-int8": {"kv_cache_dtype": "int8"},
    }
    presses = {
        "snapkv-50": _evicting("snapkv", 0.5, window=8, kernel=31),
        "streaming-50": _evicting("streaming", 0.5),
    }
    both = {"kv-int8-snapkv-25": {**forms["kv-int8"], **_evicting("snapkv", 0.25, window=8)}}
    caches: dict[str, dict[str, Any]] = {
        f"cache-{name}": {"enable_prefix_caching": name != "off"} for name in ("off", "on", "small")
    }
    caches["cache-small"]["num_kv_pages"] = 24
    return [
        _slice(
            model,
            "compression",
            _PROMPTS,
            forms | presses,
            {},
            decides=True,
            long_text=_LONG_TEXT,
        ),
        _slice(model, "capacity", _PROMPTS, forms | both, _POOL, capacity={"context_tokens": 512}),
        _slice(
            model,
            "context",
            _PROMPTS,
            forms,
            {},
            context_curve={"num_seqs": 4, "contexts": [16, 256, 1024, 1920], "budget_s": 1},
        ),
        _slice(model, "prefix_turns", _TURNS, caches, {"max_num_seqs": 1}, sharing=True),
    ]


def _evicting(method: str, budget: float, **options: Any) -> dict[str, Any]:
    return {
        "preemption": "swap",
        "kv_eviction": {"method": method, "budget": budget, **options},
    }


def _slice(
    model: str,
    name: str,
    workload: Mapping[str, Any],
    candidates: Mapping[str, Mapping[str, Any]],
    shared: Mapping[str, Any],
    *,
    decides: bool = False,
    **options: Any,
) -> SliceSpec:
    return SliceSpec(
        stage="kv_cache",
        name=name,
        model=model,
        reference=next(iter(candidates)),
        base=_BASE,
        shared=shared,
        candidates=candidates,
        workloads={"load": workload},
        repeats=3 if decides else 1,
        criterion="ttft_p50" if options.get("sharing") else "throughput",
        slo="completion",
        decides=decides,
        options=options,
    )
