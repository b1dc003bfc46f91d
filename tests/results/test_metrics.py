from __future__ import annotations

import pytest

from infopt.results import METRICS, interval_columns, metric_of


def test_known_columns_have_units_and_directions() -> None:
    metric = metric_of("latency.ttft_s.p99")
    assert metric.axis_label == "TTFT p99 (ms)"
    assert (metric.better, metric.display_scale) == ("lower", 1e3)
    assert metric_of("throughput.output_tokens_per_s").better == "higher"


@pytest.mark.parametrize(
    ("column", "label"),
    [
        ("extra.warm_up_s", "Warm up (s)"),
        ("extra.read_bytes_per_s", "Read (GB/s)"),
        ("extra.cached_share", "Cached (%)"),
        ("extra.rounds", "rounds"),
        ("quality.tasks.code.score", "Score in code (%)"),
    ],
)
def test_unknown_columns_take_their_unit_from_the_name(column: str, label: str) -> None:
    assert metric_of(column).axis_label == label


@pytest.mark.parametrize(
    ("column", "low"),
    [
        ("latency.ttft_s.p50", "intervals.latency.ttft_s.p50.low"),
        ("quality.tasks.code.score", "quality.tasks.code.low"),
        ("comparison.ttft_s.median", "comparison.ttft_s.low"),
        ("quality.kl_mean", "quality.fidelity_details.kl_low"),
        ("quality.perplexity.docs", "quality.perplexity_details.docs.low"),
        ("quality.perplexity_ratio.docs.ratio", "quality.perplexity_ratio.docs.low"),
        ("score", "low"),
    ],
)
def test_intervals_are_found_where_records_keep_them(column: str, low: str) -> None:
    high = low[: -len("low")] + "high"
    assert interval_columns(column, [column, low, high]) == (low, high)
    assert interval_columns(column, [column, low]) is None


def test_every_metric_is_filed_under_its_column() -> None:
    assert all(metric.column == column for column, metric in METRICS.items())
