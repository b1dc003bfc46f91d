"""Prometheus metrics of mixtures of experts: where tokens went, and how evenly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from infopt.engine.engine import Engine
from infopt.moe.statistics import ExpertStatistics, LayerLoad, expert_statistics

MAX_SERIES = 2048
"""Most series of one model by layer and expert; larger mixtures show their layers alone."""

_LAYERS = {
    "jain": "Jain's index of the load of a layer's experts: 1 is even, 1 / experts the worst.",
    "imbalance": "Largest load of a layer's experts over their mean.",
}


def expert_metrics(engines: Mapping[str, Engine]) -> Iterable[Metric]:
    """Return the metrics of the engines that count experts; nothing where none does."""
    counted = ((name, expert_statistics(engine.expert_counts)) for name, engine in engines.items())
    found = {name: stats for name, stats in counted if stats is not None}
    if found:
        yield _loads(found)
        yield from _layers(found)
        yield from _tokens(found)


def _loads(found: Mapping[str, ExpertStatistics]) -> Metric:
    family = CounterMetricFamily(
        "infopt_expert_load",
        f"Tokens that went to an expert; absent for models with over {MAX_SERIES} of them.",
        labels=("model", "layer", "expert"),
    )
    for name, stats in found.items():
        if len(stats.layers) * stats.num_experts > MAX_SERIES:
            continue
        for layer in stats.layers:
            for expert, count in enumerate(layer.load):
                family.add_metric((name, str(layer.layer), str(expert)), count)
    return family


def _layers(found: Mapping[str, ExpertStatistics]) -> Iterable[Metric]:
    """Return a gauge per layer; absent before the first token."""
    for key, text in _LAYERS.items():
        family = GaugeMetricFamily(f"infopt_expert_{key}", text, labels=("model", "layer"))
        for name, layer in _all_layers(found):
            value = getattr(layer, key)
            if value is not None:
                family.add_metric((name, str(layer.layer)), value)
        yield family


def _all_layers(found: Mapping[str, ExpertStatistics]) -> Iterable[tuple[str, LayerLoad]]:
    for name, stats in found.items():
        for layer in stats.layers:
            yield name, layer


def _tokens(found: Mapping[str, ExpertStatistics]) -> Iterable[Metric]:
    """Return the tokens that were counted, in each layer, by phase."""
    family = CounterMetricFamily(
        "infopt_expert_routed_tokens",
        "Tokens that were routed to experts, padding apart.",
        labels=("model", "phase"),
    )
    for name, stats in found.items():
        family.add_metric((name, "prefill"), stats.prefill_tokens)
        family.add_metric((name, "decode"), stats.decode_tokens)
    yield family
