"""A quantization run with round numbers, to read the findings off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from infopt.experiments.findings.data import StageResults
from infopt.experiments.findings.quantization import QuantizationStory
from infopt.select import FLOORS

WEIGHTS = 1_000_000
"""Weights of the model that is stood in for."""

MACHINE = {"roofline.bandwidth_bytes_per_s": 1e9, "roofline.flops_per_s": 1e10}


def scheme(
    name: str,
    position: int,
    *,
    kl: float,
    bits: float | None = None,
    slice_name: str = "schemes",
    reference: str = "none",
    ratio: float | None = None,
    code: float = 0.9,
    **extra: Any,
) -> dict[str, Any]:
    """Return the row of a candidate; its throughput is a ratio with an interval of a tenth."""
    row: dict[str, Any] = {
        "run": f"quantization/{slice_name}.{name}",
        "stage": "quantization",
        "slug": f"{slice_name}.{name}",
        "status": "ok",
        "hardware_id": "one",
        "started": f"2026-01-01T00:00:{position:02d}Z",
        "config.model": "some/tiny",
        "config.quantization": name,
        "workload.reference": f"{slice_name}.{reference}",
        "workload.criterion": "throughput",
        "extra.slice": slice_name,
        "extra.candidate": name,
        "extra.position": position,
        "extra.quantization_scheme": name,
        "extra.quantization_formats": f"4 {'float32' if name == 'none' else name}",
        "extra.quantization_path": "float" if name == "none" else "packed",
        "extra.on_stored_grid": None if name == "none" else False,
        "extra.weight_bits": bits,
        "extra.calibration_tokens": 0,
        "extra.calibration_s": 0.0,
        "extra.single_ttft_p50_s": 0.1,
        "extra.single_tpot_p50_s": 0.01,
        "extra.single_e2e_p50_s": 0.3 / (ratio or 1.0),
        "throughput.output_tokens_per_s": 100.0 * (ratio or 1.0),
        "memory.weights_bytes": WEIGHTS * (bits or 32) / 8 + 500_000,
        "memory.kv_pool_bytes": 1_000_000,
        "quality.protocol.tier": "screen",
        "quality.protocol.tasks.code": "code/n=40",
        "quality.top1_agreement": 1 - kl,
        **_quality(kl, code),
        **_speed(ratio, f"{slice_name}.{reference}"),
        **MACHINE,
    }
    return row | {f"extra.{key}": value for key, value in extra.items()}


def _quality(kl: float, code: float) -> dict[str, Any]:
    values: dict[str, Any] = {"quality.kl_mean": kl}
    values |= {f"quality.fidelity_details.kl_{e}": kl * f for e, f in (("low", 0.9), ("high", 1.1))}
    for kind in ("docs", "code"):
        base = f"quality.perplexity_ratio.{kind}"
        values |= {f"{base}.ratio": 1 + kl, f"{base}.low": 1 + kl / 2, f"{base}.high": 1 + 2 * kl}
        values[f"quality.perplexity.{kind}"] = 10 * (1 + kl)
    for end, shift in (("score", 0.0), ("low", -0.1), ("high", 0.05)):
        values[f"quality.tasks.code.{end}"] = code + shift
    return values | {"quality.tasks.code.n": 40}


def _speed(ratio: float | None, reference: str) -> dict[str, Any]:
    base = "comparison.output_tokens_per_s"
    if ratio is None:
        return {}
    verdict = "better" if ratio > 1.1 else "worse" if ratio < 0.9 else "undecided"
    numbers = {"median": ratio, "low": ratio * 0.95, "high": ratio * 1.05, "num_pairs": 6}
    return {f"{base}.{k}": v for k, v in (numbers | {"verdict": verdict}).items()} | {
        f"{base}.reference": reference
    }


def steps(slug: str, bits: float, slowness: float = 1.0) -> list[dict[str, Any]]:
    """Return decode steps of 1, 2 and 4 that take ``slowness`` times what the machine allows.

    A step moves all weights and 1 kB a sequence, and computes 2 FLOP a weight and sequence.
    """
    samples = []
    for i, size in enumerate((1, 2, 4)):
        moved, work = WEIGHTS * bits / 8 + 1000 * size, 2.0 * WEIGHTS * size
        least = max(moved / 1e9, work / 1e10)
        values = {"num_tokens": size, "bytes": moved, "flops": work, "predicted_s": least}
        values |= {"measured_s": least * slowness}
        values |= {"low_s": least * slowness * 0.9, "high_s": least * slowness * 1.1}
        samples += sample_rows(slug, {f"decode_{k}": (i, v) for k, v in values.items()})
    return samples


def sample_rows(slug: str, values: dict[str, tuple[int, float]]) -> list[dict[str, Any]]:
    """Return entries of sample lists: name to (index, value)."""
    return [
        {"slug": slug, "name": name, "index": index, "value": value}
        for name, (index, value) in values.items()
    ]


def lists(slug: str, prefix: str, columns: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return whole sample lists."""
    return [
        {"slug": slug, "name": f"{prefix}{name}", "index": i, "value": value}
        for name, values in columns.items()
        for i, value in enumerate(values)
    ]


def _schemes() -> list[dict[str, Any]]:
    return [
        scheme("none", 0, kl=0.0),
        scheme("q4_1", 1, kl=0.0, ratio=1.5, quantization_path="float"),
        scheme("int8", 2, kl=0.005, bits=8.0, ratio=2.0),
        scheme("w8a8-dynamic", 3, kl=0.05, bits=8.0, ratio=2.5),
        scheme(
            "w8a8-static",
            4,
            kl=0.5,
            bits=8.0,
            ratio=2.6,
            code=0.7,
            calibration_tokens=1024,
            calibration_s=5.0,
        ),
        scheme("int4-gptq-g64", 5, kl=0.08, bits=4.5, ratio=3.0, calibration_tokens=2048),
        scheme("mixed-5", 6, kl=0.09, bits=4.5, ratio=3.0),
    ]


def _float_trained() -> list[dict[str, Any]]:
    losses = {"none": 0.0, "int8": 0.001, "int4-rtn-g64": 0.03, "int3-rtn-g64": 0.15}
    bits = {"none": None, "int8": 8.0, "int4-rtn-g64": 4.5, "int3-rtn-g64": 3.5}
    return [
        scheme(name, i, kl=kl, bits=bits[name], slice_name="float_trained")
        for i, (name, kl) in enumerate(losses.items())
    ]


def _calibration() -> list[dict[str, Any]]:
    losses = {"rtn": 0.03, "dynamic": 0.001, "gptq-docs": 0.01, "gptq-code": 0.02}
    losses |= {"gptq-random": 0.04, "gptq-1-sequences": 0.04, "gptq-4-sequences": 0.0105}
    losses |= {"gptq-16-sequences": 0.01, "static-docs": 0.004, "static-code": 0.005}
    rows = []
    for i, (name, kl) in enumerate(losses.items()):
        found = [int(word) for word in name.split("-") if word.isdigit()]
        tokens = 256 * (found[0] if found else 32) if "-" in name else 0
        row = scheme(name, i, kl=kl, bits=4.5, slice_name="calibration", reference="rtn")
        rows.append(row | {"extra.calibration_tokens": tokens, "extra.calibration_s": tokens / 100})
    return rows


def _samples() -> list[dict[str, Any]]:
    widths = {"none": 32, "q4_1": 5, "int8": 8, "w8a8-dynamic": 8, "int4-gptq-g64": 4.5}
    slowness = {"int8": 1.6, "w8a8-dynamic": 5.0}
    samples = []
    for name, bits in widths.items():
        samples += steps(f"schemes.{name}", bits, slowness.get(name, 1.0))
    parts = {
        "layer": [0.0, 0.0, -1.0],
        "is_attention": [1.0, 0.0, 0.0],
        "num_weights": [1e6, 2e6, 1e6],
        "kl": [0.01, 0.01, 0.02],
    }
    samples += lists("schemes.mixed-5", "sensitivity.", parts)
    # Two blocks of seven products and the head, which belongs to no block.
    errors = [0.05] * 6 + [0.1] + [0.05] * 6 + [0.2] + [0.9]
    samples += lists("schemes.int4-gptq-g64", "layers.", {"relative_error": errors})
    # The same candidate of another slice must not be mixed in.
    return samples + steps("float_trained.int8", 8, 77.0)


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Callable[..., dict[str, Any]]:
    """Factory of table rows of the stage that the test file names as ``STAGE``."""
    stage = request.module.STAGE

    def make(slice_name: str, candidate: str, position: int, **values: Any) -> dict[str, Any]:
        return {
            "run": f"{stage}/{slice_name}.{candidate}",
            "stage": stage,
            "slug": f"{slice_name}.{candidate}",
            "status": "ok",
            "hardware_id": "one",
            "extra.slice": slice_name,
            "extra.candidate": candidate,
            "extra.position": position,
            **values,
        }

    return make


@pytest.fixture
def quantization_story() -> QuantizationStory:
    """A model of a million weights on a machine of 1 GB/s and 10 GFLOP/s."""
    table = pd.DataFrame([*_schemes(), *_float_trained(), *_calibration()])
    chosen = {"chosen": "int8", "reference": "none", "status": "chosen", "reason": "because"}
    data = StageResults(
        table, pd.DataFrame(_samples()), {"schemes": chosen}, "note", is_miniature=False
    )
    return QuantizationStory(data, FLOORS.get("default"))


@pytest.fixture
def lone_schemes(quantization_story: QuantizationStory) -> QuantizationStory:
    """The same run without the slices that explain, and without samples."""
    table = quantization_story.data.table
    table = table.loc[[name in ("none", "int8") for name in table["extra.candidate"]]]
    table = table.loc[table["extra.slice"] == "schemes"]
    data = StageResults(
        table.reset_index(drop=True),
        quantization_story.data.samples.iloc[:0],
        quantization_story.data.chosen,
        "note",
        is_miniature=True,
    )
    return QuantizationStory(data, FLOORS.get("default"))
