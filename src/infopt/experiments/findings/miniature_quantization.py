"""The quantization stage in small: a few schemes on the shipped tiny model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infopt.experiments.slice_spec import SliceSpec

TINY_MODEL = "tiny-dense"

_BASE = {
    "dtype": "float32",
    "kv_cache_memory_gib": 0.05,
    "max_model_len": 512,
    "max_num_seqs": 8,
}
_STEADY = {"kind": "synthetic", "num_requests": 8, "prompt_tokens": 32, "output_tokens": 8}
_TEXT = {"num_sequences": 8, "length": 128}
_REPEATS = 3


def quantization_specs(model: str | None = None) -> list[SliceSpec]:
    """Return the slices of the miniature.

    Args:
        model: Model; None for the shipped tiny one, whose weights were never quantized.
    """
    rtn = {"quantization": "int4-rtn-g64"}
    gptq, static = ({"quantization": name} for name in ("int4-gptq-g64", "w8a8-static"))
    domains = {f"gptq-{kind}": gptq | _text(domain=kind) for kind in ("docs", "code", "random")}
    sizes = {f"gptq-{n}-sequences": gptq | _text(num_sequences=n) for n in (1, 4, 16)}
    static_schemes = {f"static-{kind}": static | _text(domain=kind) for kind in ("docs", "random")}
    dynamic = {"dynamic": {"quantization": "w8a8-dynamic"}}
    return [
        _slice(model, "schemes", _schemes(), single=_STEADY | {"num_requests": 1}),
        _slice(model, "float_trained", _widths(), repeats=1, decides=False),
        _slice(
            model,
            "calibration",
            {"rtn": rtn, **dynamic, **domains, **sizes, **static_schemes},
            repeats=1,
            decides=False,
        ),
    ]


def _schemes() -> dict[str, dict[str, Any]]:
    """Return one scheme of each kind."""
    plain = ("none", "int8", "w8a8-dynamic", "int4-rtn-g64")
    calibrated = ("w8a8-static", "int4-awq-g64", "int4-gptq-g64", "mixed-5")
    return {name: {"quantization": name} for name in plain} | {
        name: {"quantization": name} | _text() for name in calibrated
    }


def _widths() -> dict[str, dict[str, Any]]:
    names = ("none", "int8", "int4-rtn-g64", "int4-rtn-channel", "int3-rtn-g64", "int2-rtn-g64")
    return {name: {"quantization": name} for name in names}


def _text(**changes: Any) -> dict[str, Any]:
    return {"calibration": {**_TEXT, **changes}}


def _slice(
    model: str | None,
    name: str,
    candidates: Mapping[str, Mapping[str, Any]],
    *,
    single: Mapping[str, Any] | None = None,
    repeats: int = _REPEATS,
    decides: bool = True,
) -> SliceSpec:
    return SliceSpec(
        stage="quantization",
        name=name,
        model=model or TINY_MODEL,
        reference=next(iter(candidates)),
        base=_BASE,
        shared={},
        candidates=candidates,
        workloads={"load": _STEADY} | ({"single": single} if single else {}),
        repeats=repeats,
        slo="completion",
        quality_tier="screen",
        quality_reference={"dtype": "float32", "quantization": "none"},
        measure_steps=single is not None,
        decides=decides,
    )
