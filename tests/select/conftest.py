from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from infopt.config import EngineConfig
from infopt.results import RunRecord, flatten_record

PROTOCOL = {
    "tier": "screen",
    "seed": 0,
    "texts": {"docs": "d", "code": "c"},
    "tasks": {"code": "40 items", "passkey": "4 items"},
}
REFERENCE_QUALITY: dict[str, Any] = {
    "protocol": PROTOCOL,
    "perplexity": {"docs": 13.5, "code": 6.0},
    "kl_mean": None,
    "tasks": {
        "code": {"score": 0.8, "low": 0.65, "high": 0.9, "n": 40},
        "passkey": {"score": 1.0, "low": 0.5, "high": 1.0, "n": 4},
    },
}


def quality(
    kl: float | None = 0.001, ratio: float = 1.0, code: float = 0.8, **changes: Any
) -> dict[str, Any]:
    """Quality section of a candidate measured under the reference's protocol."""
    return {
        "protocol": PROTOCOL,
        "perplexity": {"docs": 13.5 * ratio, "code": 6.0 * ratio},
        "kl_mean": kl,
        "tasks": {
            "code": {"score": code, "low": 0.6, "high": 0.9, "n": 40},
            "passkey": {"score": 1.0, "low": 0.5, "high": 1.0, "n": 4},
        },
        **changes,
    }


def run(slug: str, *, stage: str = "batching", **changes: Any) -> RunRecord:
    """Record of a run; ``config`` holds engine options, the rest are sections."""
    config = changes.pop("config", {})
    values: dict[str, Any] = {
        "stage": stage,
        "slug": slug,
        "config": EngineConfig(model="tiny", **config).to_dict() if config is not None else None,
        "commit": "version:0.1.0",
        "versions": {"infopt": "0", "python": "3", "torch": "2", "transformers": None},
        "hardware": {"hardware_id": "m1", "num_cores": 2, "gpus": []},
        "seeds": (0,),
        "started": "2026-01-02T03:04:05Z",
        "duration_s": 1.0,
        "quality": quality(),
    }
    return RunRecord(**(values | changes))


def served(
    goodput: float,
    ttft_s: float = 0.1,
    *,
    interval: tuple[float, float] | None = None,
    paired: tuple[float, float, float, str] | None = None,
    reference: str = "baseline/float32",
) -> dict[str, Any]:
    """Latency, SLO and comparison sections of a run that served a workload."""
    percentiles = {"p50": ttft_s / 2, "p90": ttft_s, "p99": None, "mean": ttft_s / 2, "count": 50}
    sections: dict[str, Any] = {
        "latency": {"ttft_s": percentiles},
        "throughput": {"num_requests": 50, "num_completed": 50},
        "slo": {
            "name": "own",
            "limits": {"ttft_s": 0.2, "percentile": 90},
            "goodput_requests_per_s": goodput,
        },
    }
    if interval is not None:
        ends = {"low": interval[0], "high": interval[1]}
        sections["intervals"] = {"slo.goodput_requests_per_s": ends}
    if paired is not None:
        median, low, high, verdict = paired
        sections["comparison"] = {
            "goodput_requests_per_s": {
                "median": median,
                "low": low,
                "high": high,
                "num_pairs": 8,
                "verdict": verdict,
                "reference": reference,
            }
        }
    return sections


REFERENCE = run(
    "float32", stage="baseline", config={"dtype": "float32"}, quality=REFERENCE_QUALITY, **served(2)
)


@pytest.fixture
def make_table() -> Callable[..., pd.DataFrame]:
    """Factory of result tables from records, the reference first."""

    def make(*records: RunRecord, with_reference: bool = True) -> pd.DataFrame:
        rows = [REFERENCE, *records] if with_reference else list(records)
        return pd.DataFrame([flatten_record(record) for record in rows])

    return make


@pytest.fixture
def make_run() -> Callable[..., RunRecord]:
    return run


@pytest.fixture
def make_served() -> Callable[..., dict[str, Any]]:
    return served


@pytest.fixture
def make_quality() -> Callable[..., dict[str, Any]]:
    return quality
