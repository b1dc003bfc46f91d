"""Prometheus metrics: totals read off the engines, and histograms filled step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from infopt.engine.engine import Engine
from infopt.outputs import RequestMetrics, RequestOutput
from infopt.serve.deltas import Delta
from infopt.serve.expert_metrics import expert_metrics
from infopt.serve.speculation_metrics import speculation_metrics

_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LABELS = ("model",)


class Metrics:
    """All metrics of a server.

    Args:
        engines: By model name, which becomes the label ``model``.

    Attributes:
        registry: What ``/metrics`` prints.
        http_requests: Answers by route and status.
        routed: Answers to requests for ``auto`` by model and reason.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        """Create the metrics in a registry of their own."""
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engines))
        self.http_requests = Counter(
            "infopt_http_requests",
            "HTTP answers.",
            ("route", "status"),
            registry=self.registry,
        )
        self.routed = Counter(
            "infopt_routed_requests",
            "Answers to requests for the model auto, by the model that gave them.",
            ("model", "reason"),
            registry=self.registry,
        )
        self._ttft = self._histogram(
            "infopt_time_to_first_token_seconds", "From arrival to the first token.", _LONG_S
        )
        self._itl = self._histogram(
            "infopt_inter_token_latency_seconds", "Between the tokens of an answer.", _SHORT_S
        )
        self._e2e = self._histogram(
            "infopt_request_duration_seconds", "From arrival to the last token.", _LONG_S
        )
        self._queue = self._histogram(
            "infopt_queue_time_seconds", "From arrival to the first step.", _LONG_S
        )
        self._children = {
            name: tuple(h.labels(name) for h in (self._ttft, self._itl, self._e2e, self._queue))
            for name in engines
        }

    def observe(self, model: str, output: RequestOutput, deltas: Sequence[Delta]) -> None:
        """Fill the histograms from what a step added."""
        ttft, itl, e2e, queue = self._children[model]
        for delta in deltas:
            metrics = output.outputs[delta.index].metrics
            assert metrics is not None
            times, num_new = metrics.token_times_s, len(delta.token_ids)
            first_new = len(times) - num_new
            if num_new and first_new == 0:
                _observe(ttft, metrics.ttft_s)
                _observe(queue, metrics.queue_s)
            first_gap = max(first_new, 1)
            for _ in range(first_gap, len(times)):  # tokens of one step share its gap
                itl.observe((times[-1] - times[first_gap - 1]) / (len(times) - first_gap))
            if delta.finish_reason is not None and _is_served(metrics, delta):
                _observe(e2e, metrics.e2e_s)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, _LABELS, buckets=buckets, registry=self.registry)


def _observe(histogram: Histogram, value: float | None) -> None:
    if value is not None:
        histogram.observe(value)


def _is_served(metrics: RequestMetrics, delta: Delta) -> bool:
    return metrics.finished_s is not None and delta.finish_reason in ("stop", "length")


class _EngineCollector(Collector):
    """Reads the engines when asked, so that counting costs the model loop nothing."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines

    def collect(self) -> Iterable[Metric]:
        """Return the state of all engines."""
        gauges = {name: _gauges(engine) for name, engine in self._engines.items()}
        counters = {name: _counters(engine) for name, engine in self._engines.items()}
        yield from _families(GaugeMetricFamily, _GAUGES, gauges)
        yield from _families(CounterMetricFamily, _COUNTERS, counters)
        old = {name: engine.cache.quantized for name, engine in self._engines.items()}
        pools = {name: cache.pool for name, cache in old.items() if cache is not None}
        if pools:
            pages = {n: (p.num_pages, p.num_used, p.num_cached) for n, p in pools.items()}
            yield from _families(GaugeMetricFamily, _QUANTIZED_GAUGES, pages)
        finished = CounterMetricFamily(
            "infopt_completions_finished",
            "Completions by how they ended.",
            labels=("model", "reason"),
        )
        for name, engine in self._engines.items():
            for reason, count in list(engine.stats.num_finished.items()):
                finished.add_metric((name, reason), count)
        yield finished
        yield from speculation_metrics(self._engines)
        yield from expert_metrics(self._engines)


_GAUGES = {
    "infopt_requests_running": "Sequences in the batch.",
    "infopt_requests_waiting": "Sequences in the queue.",
    "infopt_kv_pages": "Pages of the KV pool.",
    "infopt_kv_pages_used": "Pages that sequences refer to.",
    "infopt_kv_pages_cached": "Pages kept for their prefix alone.",
    "infopt_prefix_cache_hit_ratio": "Cached share of all prompt tokens so far.",
}
_QUANTIZED_GAUGES = {
    "infopt_kv_quantized_pages": "Pages of the pool of quantized KV pages.",
    "infopt_kv_quantized_pages_used": "Quantized pages that sequences refer to.",
    "infopt_kv_quantized_pages_cached": "Quantized pages kept for their prefix alone.",
}
_COUNTERS = {
    "infopt_requests": "Requests taken.",
    "infopt_prompt_tokens": "Prompt tokens of admitted requests.",
    "infopt_cached_prompt_tokens": "Of those, tokens found in the prefix cache.",
    "infopt_generated_tokens": "Output tokens.",
    "infopt_preemptions": "Times a sequence lost its pages.",
    "infopt_steps": "Steps of the engine.",
    "infopt_kv_freed_bytes": "Bytes of the pages that evicting rows gave back.",
}


def _gauges(engine: Engine) -> tuple[float, ...]:
    pool, scheduler = engine.cache.pool, engine.scheduler
    return (
        len(scheduler.running),
        len(scheduler.waiting),
        pool.num_pages,
        pool.num_used,
        pool.num_cached,
        engine.stats.prefix_hit_rate or 0.0,
    )


def _counters(engine: Engine) -> tuple[float, ...]:
    stats = engine.stats
    return (
        stats.num_requests,
        stats.num_prompt_tokens,
        stats.num_cached_tokens,
        stats.num_generated_tokens,
        stats.num_preemptions,
        stats.num_steps,
        stats.kv_freed_bytes,
    )


def _families(
    family: type[GaugeMetricFamily] | type[CounterMetricFamily],
    texts: Mapping[str, str],
    values: Mapping[str, tuple[float, ...]],
) -> Iterable[Metric]:
    for index, (metric, text) in enumerate(texts.items()):
        out = family(metric, text, labels=_LABELS)
        for model, row in values.items():
            out.add_metric((model,), row[index])
        yield out
