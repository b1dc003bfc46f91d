from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from infopt import plotting


def make_runs() -> pd.DataFrame:
    """Three schedulers at six batch sizes, with long names and some missing numbers."""
    rows = []
    for base, name in ((95, "continuous"), (70, "static"), (50, "static_padded")):
        for size in (1, 2, 4, 8, 16, 32):
            rate = base * size / (1 + size / 12)
            rows.append({
                "run": f"batching/{name}-{size}",
                "slug": f"scheduling={name}-max_num_seqs={size}",
                "stage": "batching",
                "status": "ok",
                "config.scheduling": name,
                "config.max_num_seqs": size,
                "throughput.output_tokens_per_s": rate,
                "intervals.throughput.output_tokens_per_s.low": rate * 0.95,
                "intervals.throughput.output_tokens_per_s.high": rate * 1.04,
                "latency.ttft_s.p50": 0.02 * size**0.7 * (1 + 1 / base),
                "latency.ttft_s.p90": 0.04 * size**0.7 * (1 + 1 / base),
                "latency.ttft_s.p99": 0.1 * size**0.7 if size > 4 else None,
                "throughput.offered_requests_per_s": size * 0.5,
                "slo.goodput_requests_per_s": size * (0.5 if size < 8 else 0.3),
                "roofline.bytes": 2.7e8,
                "roofline.flops": 2.7e8 * size,
                "roofline.measured_s": 0.006 + 0.0002 * size,
            })  # fmt: skip
    failed = {"run": "batching/f", "slug": "f", "stage": "batching", "status": "failed"}
    return pd.DataFrame([*rows, failed])


def make_load() -> pd.DataFrame:
    """A server that is overloaded from five requests per second on."""
    return pd.DataFrame({
        "run": [f"serving/load.rate-{rate}" for rate in (1, 2, 4, 5, 8)],
        "status": "ok",
        "extra.rate_per_s": [1.0, 2.0, 4.0, 5.0, 8.0],
        "extra.is_good": [True, True, True, False, False],
        "slo.goodput_requests_per_s": [1.0, 2.0, 3.8, 4.0, 1.0],
        "intervals.slo.goodput_requests_per_s.low": [0.9, 1.8, 3.3, 3.0, 0.5],
        "intervals.slo.goodput_requests_per_s.high": [1.0, 2.0, 3.9, 4.4, 2.0],
        "latency.ttft_s.p90": [0.1, 0.12, 0.4, 1.2, 9.0],
    })  # fmt: skip


def make_ratios() -> pd.DataFrame:
    table = pd.DataFrame(
        {
            "slug": ["continuous", "static_padded", "prefix-cache", "a-very-long-name" * 5],
            "status": "ok",
        }
    )
    columns: dict[str, list[Any]] = {
        "median": [1.82, 0.7, 1.01, 0.99],
        "low": [1.7, 0.65, 0.97, 0.96],
        "high": [1.95, 0.74, 1.05, 1.02],
        "num_pairs": [8, 8, 8, 8],
        "verdict": ["better", "worse", "undecided", "undecided"],
        "reference": ["static"] * 4,
    }
    for name, values in columns.items():
        table[f"comparison.output_tokens_per_s.{name}"] = values
        table[f"comparison.ttft_s.{name}"] = values
    return table


def make_samples() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    parts = [
        pd.DataFrame({"run": name, "value": rng.gamma(2, scale, 80)})
        for name, scale in (("continuous", 0.05), ("static", 0.15))
    ]
    table = pd.concat(parts, ignore_index=True)
    table.loc[table.index[-10:], "value"] = np.nan
    return table


def make_steps() -> pd.DataFrame:
    """Steps of which a third each is prefill, mixed and decode; 3 % of the slots are empty."""
    kind = np.arange(90) % 3
    table = pd.DataFrame(
        {
            "start_s": np.arange(90) * 0.01,
            "duration_s": 0.010,
            "schedule_s": 0.001,
            "forward_s": 0.007,
            "sample_s": 0.001,
            "num_prefill_tokens": np.where(kind < 2, 64, 0),
            "num_decode_tokens": np.where(kind > 0, 8, 0),
            "num_pages_used": 100,
            "num_tokens_in_pages": 1552,
        }
    )
    return table


def make_ops() -> pd.DataFrame:
    """Three ops of two steps on a machine of 100 GB/s and 1 TFLOP/s; one has no limit."""
    rows = []
    for step, scale in (("decode of 1", 1.0), ("prefill of 128", 16.0)):
        work = {"gate_up": (4e7, 4e7 * scale), "norm": (1e5 * scale, 5e4 * scale)}
        for op, (moved, flops) in work.items():
            least = max(moved / 1e11, flops / 1e12)
            row = {"step": step, "op": op, "measured_s": 2 * least, "predicted_s": least}
            rows.append(row | {"bytes": moved, "flops": flops})
        rows.append({"step": step, "op": "between", "measured_s": 2e-4 * scale})
    return pd.DataFrame(rows)


@pytest.fixture
def ops() -> pd.DataFrame:
    return make_ops()


@pytest.fixture
def runs() -> pd.DataFrame:
    return make_runs()


@pytest.fixture
def ratios() -> pd.DataFrame:
    return make_ratios()


@pytest.fixture
def samples() -> pd.DataFrame:
    return make_samples()


@pytest.fixture
def load() -> pd.DataFrame:
    return make_load()


@pytest.fixture
def steps() -> pd.DataFrame:
    return make_steps()


TTFT, RATE = "latency.ttft_s.p50", "throughput.output_tokens_per_s"
PLOTS: dict[str, Callable[..., Any]] = {
    "pareto": lambda **k: plotting.pareto(make_runs(), TTFT, RATE, color="config.scheduling", **k),
    "latency_percentiles": lambda **k: plotting.latency_percentiles(make_runs(), limit_s=0.5, **k),
    "throughput_vs_batch": lambda **k: plotting.throughput_vs_batch(make_runs(), **k),
    "ratio_forest": lambda **k: plotting.ratio_forest(make_ratios(), **k),
    "roofline": lambda **k: plotting.roofline(make_runs(), 85e9, 974e9, **k),
    "op_roofline": lambda **k: plotting.op_roofline(make_ops(), 1e11, 1e12, **k),
    "op_shares": lambda **k: plotting.op_shares(make_ops(), **k),
    "ecdf": lambda **k: plotting.ecdf(make_samples(), limit=0.2, **k),
    "goodput_curve": lambda **k: plotting.goodput_curve(
        make_runs(), group="config.scheduling", **k
    ),
    "load_curve": lambda **k: plotting.load_curve(make_load(), bracket=(4.0, 5.0), **k),
    "bars_with_interval": lambda **k: plotting.bars_with_interval(
        make_runs(), RATE, reference="scheduling=static-max_num_seqs=8", **k
    ),
    "step_breakdown": lambda **k: plotting.step_breakdown(make_steps(), **k),
    "fragmentation": lambda **k: plotting.fragmentation(make_steps(), 16, **k),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that ask for ``plot_name`` once per plot."""
    if "plot_name" in metafunc.fixturenames:
        metafunc.parametrize("plot_name", list(PLOTS))


@pytest.fixture(scope="session")
def draw() -> Callable[..., Any]:
    """Draw the plot of a name anew."""
    return lambda name, **options: PLOTS[name](**options)


@pytest.fixture(scope="session")
def drawn() -> Callable[[str], Any]:
    """Return the plot of a name, drawn once, to look at."""
    return functools.cache(lambda name: PLOTS[name]())
