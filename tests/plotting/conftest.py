from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from infopt import plotting
from infopt.results.metrics import Metric


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


def make_schemes() -> pd.DataFrame:
    """Four schemes: one lossless and stored in the file, one that runs dequantized."""
    columns: dict[str, Any] = {
        "slug": ["none", "q4_1", "int8", "int4-rtn-g64"],
        "status": "ok",
        "extra.bits": [32.0, 5.0, 8.0, 4.5],
        "extra.is_stored": [False, True, False, False],
        "extra.is_dequantized": [False, False, True, False],
        "extra.calibration_tokens": [256, 1024, 4096, 16384],
    }
    for column, values in {
        "quality.kl_mean": [0.0, 0.0, 0.004, 0.3],
        "quality.perplexity_ratio.docs.ratio": [1.0, 0.999, 1.004, 1.5],
        "quality.perplexity_ratio.code.ratio": [1.0, 1.001, 1.006, 1.4],
    }.items():
        is_ratio = column.endswith("ratio")
        ends = column.removesuffix("ratio") if is_ratio else "quality.fidelity_details.kl_"
        columns[column] = values
        columns[f"{ends}low"] = [value * 0.95 for value in values]
        columns[f"{ends}high"] = [value * 1.05 for value in values]
    return pd.DataFrame(columns)


def make_gains() -> pd.DataFrame:
    """Two schemes, measured at 1 and 4 sequences and predicted up to 16; one ends undecided."""
    rows = []
    for name, first, last in (("int8", 2.0, 1.0), ("int4-rtn-g64", 3.0, 1.5)):
        measured = {1: first, 4: last}
        for size in (1, 4, 16):
            value = measured.get(size, np.nan)
            ends = {"low": value * 0.9, "high": value * 1.1}
            row = {"scheme": name, "num_tokens": size, "measured": value, **ends}
            rows.append(row | {"predicted": 1.2 * first / size**0.3})
    return pd.DataFrame(rows)


def make_parts() -> pd.DataFrame:
    """Two layers and the head, which suffers most."""
    return pd.DataFrame({
        "layer": [0, 0, 1, 1, None],
        "part": ["attention", "mlp", "attention", "mlp", "head"],
        "kl": [0.001, 0.002, 0.003, 0.004, 0.03],
    })  # fmt: skip


def make_errors() -> pd.DataFrame:
    return pd.DataFrame({
        "scheme": ["int4-awq"] * 4 + ["int4-gptq"] * 4,
        "block": [0, 0, 1, 1] * 2,
        "relative_error": [0.08, 0.1, 0.12, 0.1, 0.04, 0.06, 0.05, 0.05],
    })  # fmt: skip


def make_scores() -> pd.DataFrame:
    """A reference of 80 to 95 % in one task; one scheme is below it, one is not."""
    rows = [
        {"task": task, "scheme": name, "score": score, "low": score - 0.1, "high": score + 0.05}
        for task in ("code", "passkey")
        for name, score in (("none", 0.9), ("int8", 0.85), ("int2", 0.5 if task == "code" else 0.9))
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def schemes() -> pd.DataFrame:
    return make_schemes()


@pytest.fixture
def gains() -> pd.DataFrame:
    return make_gains()


@pytest.fixture
def parts() -> pd.DataFrame:
    return make_parts()


@pytest.fixture
def errors() -> pd.DataFrame:
    return make_errors()


@pytest.fixture
def scores() -> pd.DataFrame:
    return make_scores()


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


FOUND = Metric("passkey", "Passkeys found", "%", "higher", 100)
TTFT, RATE = "latency.ttft_s.p50", "throughput.output_tokens_per_s"


def titled(options: dict[str, Any]) -> dict[str, Any]:
    """Add the finding that plots of the KV cache are given."""
    return {"title": "what the run found", **options}


def make_sizes() -> pd.DataFrame:
    """Three instance sizes with modelled energy; the smallest takes least per token."""
    return pd.DataFrame({
        "run": [f"power/threads.threads-{n}" for n in (1, 2, 4)],
        "status": "ok",
        "extra.candidate": [f"threads-{n}" for n in (1, 2, 4)],
        "throughput.output_tokens_per_s": [150.0, 260.0, 400.0],
        "intervals.throughput.output_tokens_per_s.low": [140.0, 250.0, 390.0],
        "intervals.throughput.output_tokens_per_s.high": [160.0, 270.0, 430.0],
        "energy.source": "modelled",
        "energy.j_per_token": [0.03, 0.034, 0.05],
        "energy.j_per_token_low": [0.012, 0.014, 0.02],
        "energy.j_per_token_high": [0.06, 0.065, 0.09],
    })  # fmt: skip


def make_starts() -> pd.DataFrame:
    columns = {"format": ["none", "q4_1"], "start_j": [30.0, 12.0], "warm_watts": [1.5, 1.5]}
    return pd.DataFrame(columns)


def make_request_energy() -> pd.DataFrame:
    """Twenty requests of rising lengths."""
    rows = [(16 * i, 4 + i, 0.01 * i, 0.05 * (4 + i)) for i in range(1, 21)]
    names = ("prompt_tokens", "output_tokens", "prefill_j", "decode_j")
    return pd.DataFrame(rows, columns=pd.Index(names))


def make_gains_over_baselines() -> pd.DataFrame:
    """A choice, a baseline that it beats, and one that kept no request in some pair."""
    return pd.DataFrame({
        "name": ["the choice", "static, bfloat16", "continuous, bfloat16"],
        "technique": ["without-page_size", "static", "continuous"],
        "goodput_per_s": [22.0, 5.5, 0.0],
        "ratio": [None, 4.0, None],
        "low": [None, 3.2, None],
        "high": [None, 4.9, None],
    })  # fmt: skip


def make_lengths() -> pd.DataFrame:
    """A figure over lengths; long outputs have none."""
    rows = [(i, o, None if o == 1024 else i / 900 + o / 70) for i in (64, 4096) for o in (16, 1024)]
    return pd.DataFrame(rows, columns=pd.Index(["num_input", "num_output", "requests_per_s"]))


def make_costs() -> pd.DataFrame:
    """One machine up to two requests per second, two from there on, and a price elsewhere."""
    traffic = np.geomspace(0.01, 4, 30)
    return pd.DataFrame({
        "elsewhere": "some-api",
        "requests_per_s": traffic,
        "own_per_request": 1e-4 * np.ceil(traffic / 2) / traffic,
        "elsewhere_per_request": 3e-4,
    })  # fmt: skip


def make_cells() -> pd.DataFrame:
    """Speculation at one and eight sequences: a gain, a loss, and neither."""
    steps = [(60, 0, 0, 40, 0), (10, 5, 85, 0, 0), (0, 0, 90, 10, 0)]
    names = ("on", "probe", "off", "empty", "learn")
    table = pd.DataFrame({
        "candidate": "auto",
        "traffic": ["edit", "edit", "chat"],
        "batch": [1, 8, 1],
        "ratio": [2.0, 0.9, 1.01],
        "low": [1.9, 0.85, 0.97],
        "high": [2.1, 0.95, 1.05],
        "verdict": ["better", "worse", "undecided"],
        "predicted": [2.05, 1.2, 1.0],
    })  # fmt: skip
    shares = {f"steps_{name}": [row[i] for row in steps] for i, name in enumerate(names)}
    return table.assign(**shares)


def make_acceptance() -> pd.DataFrame:
    return pd.DataFrame({
        "traffic": ["edit"] * 3 + ["chat"] * 2,
        "position": [1, 2, 3, 1, 2],
        "proposed": [100, 80, 60, 40, 10],
        "rate": [0.9, 0.7, 0.5, 0.3, 0.1],
        "low": [0.85, 0.6, 0.4, 0.2, 0.0],
        "high": [0.95, 0.8, 0.6, 0.45, 0.4],
    })  # fmt: skip


def make_kept() -> pd.DataFrame:
    return pd.DataFrame({
        "name": ["auto", "kv-int8", "snapkv-50", "streaming-50"],
        "kept": [1.0, 0.53, 0.5, 0.5],
        "value": [1.0, 1.0, 0.9, 0.4],
        "low": [0.9, 0.9, 0.8, 0.3],
        "high": [1.0, 1.0, 0.95, 0.5],
        "differs": [False, False, False, True],
    })  # fmt: skip


def make_capacity() -> pd.DataFrame:
    return pd.DataFrame({
        "extra.candidate": ["auto", "kv-int8", "kv-int8+snapkv-25"],
        "extra.capacity_num_seqs": [4, 7, 22],
        "extra.capacity_predicted_seqs": [4, 8, 22],
    })  # fmt: skip


def make_shares() -> pd.DataFrame:
    return pd.DataFrame({
        "name": ["auto"] * 3 + ["kv-int8"] * 3,
        "context": [500, 1000, 2000] * 2,
        "measured": [0.1, 0.2, 0.35, 0.06, 0.12, 0.22],
        "low": [0.05, 0.15, 0.3, 0.03, 0.08, 0.18],
        "high": [0.15, 0.25, 0.4, 0.1, 0.16, 0.28],
        "predicted": [0.12, 0.22, 0.36, 0.07, 0.13, 0.24],
    })  # fmt: skip


def make_prefixes() -> pd.DataFrame:
    return pd.DataFrame({
        "name": ["cache-on"] * 3 + ["cache-small"] * 3,
        "prompt": [100, 120, 140] * 2,
        "cached": [0, 80, 100, 0, 40, 0],
        "shareable": [0, 80, 100] * 2,
        "kept": [1.0, 1.0, 1.0, 0.0, 1.0, 0.5],
    })  # fmt: skip


def make_measures() -> pd.DataFrame:
    """Four measures of a mixture over a dense model."""
    rows = [
        ("Perplexity on docs", 0.95, 0.92, 0.98, "better"),
        ("Perplexity on code", 0.99, 0.97, 1.01, "undecided"),
        ("Throughput", 0.75, 0.7, 0.8, "worse"),
        ("Time to first token", 1.6, 1.5, 1.7, "worse"),
    ]
    return pd.DataFrame(rows, columns=["measure", "ratio", "low", "high", "verdict"])


def make_loads() -> pd.DataFrame:
    """Two kinds of text, two layers of four experts."""
    shares = {"docs": (0.4, 0.3, 0.2, 0.1), "code": (0.25, 0.25, 0.25, 0.25)}
    rows = [
        {
            "kind": kind,
            "layer": layer,
            "expert": expert,
            "share": share,
            "low": share - 0.02,
            "high": share + 0.02,
        }
        for kind, own in shares.items()
        for layer in (1, 3)
        for expert, share in enumerate(own)
    ]
    return pd.DataFrame(rows)


def make_distinct() -> pd.DataFrame:
    """Two kinds of text; docs touch fewer experts than even choices."""
    formula = {1: 2.0, 2: 3.0, 4: 3.75, 8: 3.98}
    rows = [
        {
            "kind": kind,
            "rows": rows,
            "steps": 10,
            "mean": expected * factor,
            "most": min(4, 2 * rows),
            "formula": expected,
            "bound": min(4, 2 * rows),
        }
        for kind, factor in (("docs", 0.9), ("code", 1.0))
        for rows, expected in formula.items()
    ]
    return pd.DataFrame(rows)


def make_routes() -> pd.DataFrame:
    """Two policies and the random one at five shares of the strong model."""
    shares = np.linspace(0, 1, 5)
    gains = {"random": 0.0, "classifier": 0.1, "cascade": 0.05}
    parts = [
        pd.DataFrame({
            "policy": name,
            "share": shares,
            "seconds": 0.02 + shares * 0.2 + (0.02 if name == "cascade" else 0.0),
            "quality": 0.3 + 0.2 * shares + gain * 4 * shares * (1 - shares),
            "quality_low": 0.22 + 0.2 * shares + gain * 4 * shares * (1 - shares),
            "quality_high": 0.38 + 0.2 * shares + gain * 4 * shares * (1 - shares),
        })
        for name, gain in gains.items()
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def make_lifts() -> pd.DataFrame:
    """A policy of each verdict."""
    rows = [
        ("classifier", 0.05, 0.02, 0.08, "better"),
        ("length", -0.03, -0.05, -0.01, "worse"),
        ("cascade-margin", 0.01, -0.02, 0.04, "undecided"),
    ]
    return pd.DataFrame(rows, columns=["policy", "lift", "low", "high", "verdict"])


SHARE = Metric("share", "Prompts that the strong model answers", "%", display_scale=100.0)

PLOTS: dict[str, Callable[..., Any]] = {
    "pareto": lambda **k: plotting.pareto(make_runs(), TTFT, RATE, color="config.scheduling", **k),
    "latency_percentiles": lambda **k: plotting.latency_percentiles(make_runs(), limit_s=0.5, **k),
    "throughput_vs_batch": lambda **k: plotting.throughput_vs_batch(make_runs(), **k),
    "quality_bits": lambda **k: plotting.quality_bits(make_schemes(), limits={"floor": 0.02}, **k),
    "batch_gain": lambda **k: plotting.batch_gain(make_gains(), **k),
    "sensitivity_bars": lambda **k: plotting.sensitivity_bars(make_parts(), **k),
    "layer_errors": lambda **k: plotting.layer_errors(make_errors(), **k),
    "task_scores": lambda **k: plotting.task_scores(make_scores(), "none", **k),
    "calibration_size": lambda **k: plotting.calibration_size(
        make_schemes(), baselines={"docs": 1.2}, **k
    ),
    "text_ratios": lambda **k: plotting.text_ratios(make_schemes(), limit=1.02, **k),
    "ratio_forest": lambda **k: plotting.ratio_forest(make_ratios(), **k),
    "roofline": lambda **k: plotting.roofline(make_runs(), 85e9, 974e9, **k),
    "op_roofline": lambda **k: plotting.op_roofline(make_ops(), 1e11, 1e12, **k),
    "op_shares": lambda **k: plotting.op_shares(make_ops(), **k),
    "ecdf": lambda **k: plotting.ecdf(make_samples(), limit=0.2, **k),
    "goodput_gains": lambda **k: plotting.goodput_gains(make_gains_over_baselines(), **k),
    "goodput_curve": lambda **k: plotting.goodput_curve(
        make_runs(), group="config.scheduling", **k
    ),
    "load_curve": lambda **k: plotting.load_curve(make_load(), bracket=(4.0, 5.0), **k),
    "bars_with_interval": lambda **k: plotting.bars_with_interval(
        make_runs(), RATE, reference="scheduling=static-max_num_seqs=8", **k
    ),
    "step_breakdown": lambda **k: plotting.step_breakdown(make_steps(), **k),
    "cell_gains": lambda **k: plotting.cell_gains(make_cells(), name="auto", **k),
    "acceptance_by_position": lambda **k: plotting.acceptance_by_position(
        make_acceptance(), name="suffix", **k
    ),
    "decision_shares": lambda **k: plotting.decision_shares(make_cells(), **k),
    "formula_scatter": lambda **k: plotting.formula_scatter(make_cells(), **k),
    "size_tradeoff": lambda **k: plotting.size_tradeoff(make_sizes(), **titled(k)),
    "keep_warm_curves": lambda **k: plotting.keep_warm_curves(
        make_starts(), is_derived=True, **titled(k)
    ),
    "request_energy": lambda **k: plotting.request_energy(
        make_request_energy(), is_derived=True, **titled(k)
    ),
    "lengths_map": lambda **k: plotting.lengths_map(
        make_lengths(), "requests_per_s", label="requests/s", **titled(k)
    ),
    "cost_curves": lambda **k: plotting.cost_curves(make_costs(), currency="EUR", **titled(k)),
    "kept_quality": lambda **k: plotting.kept_quality(
        make_kept(), FOUND, lines={"auto": 1.0}, **titled(k)
    ),
    "capacity_bars": lambda **k: plotting.capacity_bars(make_capacity(), **titled(k)),
    "kv_share": lambda **k: plotting.kv_share(make_shares(), **titled(k)),
    "prefix_hits": lambda **k: plotting.prefix_hits(make_prefixes(), **titled(k)),
    "prefix_survivors": lambda **k: plotting.prefix_survivors(make_prefixes(), **titled(k)),
    "measure_ratios": lambda **k: plotting.measure_ratios(make_measures(), reference="dense", **k),
    "expert_loads": lambda **k: plotting.expert_loads(make_loads(), 4, **k),
    "distinct_experts": lambda **k: plotting.distinct_experts(make_distinct(), 4, **k),
    "routing_curves": lambda **k: plotting.routing_curves(make_routes(), x=SHARE, **k),
    "routing_lifts": lambda **k: plotting.routing_lifts(make_lifts(), **k),
    "fragmentation": lambda **k: plotting.fragmentation(make_steps(), 16, **k),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that ask for ``plot_name`` once per plot."""
    if "plot_name" in metafunc.fixturenames:
        metafunc.parametrize("plot_name", list(PLOTS))


@pytest.fixture
def measures() -> pd.DataFrame:
    """Measures of a mixture over a dense model."""
    return make_measures()


@pytest.fixture
def loads() -> pd.DataFrame:
    """Shares of experts."""
    return make_loads()


@pytest.fixture
def distinct() -> pd.DataFrame:
    """Distinct experts of a step."""
    return make_distinct()


@pytest.fixture
def routes() -> pd.DataFrame:
    """Curves of policies."""
    return make_routes()


@pytest.fixture
def lifts() -> pd.DataFrame:
    """Policies against a random one."""
    return make_lifts()


@pytest.fixture(scope="session")
def draw() -> Callable[..., Any]:
    """Draw the plot of a name anew."""
    return lambda name, **options: PLOTS[name](**options)


@pytest.fixture(scope="session")
def drawn() -> Callable[[str], Any]:
    """Return the plot of a name, drawn once, to look at."""
    return functools.cache(lambda name: PLOTS[name]())
