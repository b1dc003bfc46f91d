"""Prometheus metrics of speculative decoding: what became of guesses, and what was decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from infopt.engine.draft_stats import DraftStats
from infopt.engine.engine import Engine

_COUNTERS = {
    "infopt_spec_drafted_passes": "Decoding passes of a sequence that verified guesses.",
    "infopt_spec_plain_passes": "Decoding passes of a sequence without a guess.",
    "infopt_spec_emitted_tokens": "Tokens from passes that verified guesses.",
    "infopt_spec_draft_seconds": "Time of proposing guesses.",
}
_GAUGES = {
    "infopt_spec_predicted_speedup": "Decoding with chosen guesses over without, as expected.",
    "infopt_spec_measured_speedup": "The same, as it came out.",
}


def speculation_metrics(engines: Mapping[str, Engine]) -> Iterable[Metric]:
    """Return the metrics of the engines that guess; nothing where none does."""
    drafted = ((name, engine.draft_stats) for name, engine in engines.items())
    stats = {name: found for name, found in drafted if found is not None}
    if stats:
        yield from _totals(stats)
        yield from _by_position(stats)
    deciding = {name: engines[name].scheduler.control.describe() for name in stats}
    decided = {name: found for name, found in deciding.items() if found is not None}
    if decided:
        yield from _decisions(decided)


def _totals(engines: Mapping[str, DraftStats]) -> Iterable[Metric]:
    rows = {
        name: (s.num_drafted_passes, s.num_plain_passes, s.num_emitted, s.draft_s)
        for name, s in engines.items()
    }
    for index, (metric, text) in enumerate(_COUNTERS.items()):
        family = CounterMetricFamily(metric, text, labels=("model",))
        for name, row in rows.items():
            family.add_metric((name,), row[index])
        yield family


def _by_position(engines: Mapping[str, DraftStats]) -> Iterable[Metric]:
    """Return guesses by position; acceptance is accepted over proposed."""
    for kind, text in (("proposed", "Guesses verified"), ("accepted", "Guesses kept")):
        family = CounterMetricFamily(
            f"infopt_spec_{kind}_tokens",
            f"{text}, by position in the draft.",
            labels=("model", "position"),
        )
        for name, stats in engines.items():
            for position, count in enumerate(list(getattr(stats, kind)), start=1):
                family.add_metric((name, str(position)), count)
        yield family


def _decisions(engines: Mapping[str, Mapping[str, Any]]) -> Iterable[Metric]:
    """Return how often what was decided, and the gain; a gauge is absent before it is known."""
    for key, metric, text in (
        ("decisions", "infopt_spec_control_steps", "Steps by what was decided about guesses."),
        ("lengths", "infopt_spec_control_lengths", "Passes by how many guesses were chosen."),
    ):
        label = key.removesuffix("s")
        counter = CounterMetricFamily(metric, text, labels=("model", label))
        for name, found in engines.items():
            for value, count in found[key].items():
                counter.add_metric((name, str(value)), count)
        yield counter
    for metric, text in _GAUGES.items():
        gauge = GaugeMetricFamily(metric, text, labels=("model",))
        for name, found in engines.items():
            value = found[metric.removeprefix("infopt_spec_")]
            if value is not None:
                gauge.add_metric((name,), value)
        yield gauge
