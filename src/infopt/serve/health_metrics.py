"""Prometheus metrics of the server itself: what it holds on to, and where its CPU time goes.

All of them are read on the event loop when ``/metrics`` is asked for. A server without requests has
nothing in flight, no open stream, no tracked request and a handful of tasks; anything else is a
leak, which is what `infopt.bench.soak` looks for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from infopt.serve.service import ServedModel, Service


def add_health_metrics(service: Service) -> None:
    """Add the metrics to what ``/metrics`` prints."""
    registry = service.metrics.registry
    registry.register(_HealthCollector(service))
    # process_resident_memory_bytes, process_open_fds, process_cpu_seconds_total (Linux only).
    ProcessCollector(registry=registry)


class _HealthCollector(Collector):
    """Reads the server when asked."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the values exist once the event loop runs."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the state of the server; to be called on the event loop."""
        for name, (text, read) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=read(self._service))
        for name, (text, read_model) in _MODEL_GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=("model",))
            for model in self._service.models.values():
                family.add_metric((model.name,), read_model(model))
            yield family
        for name, (text, read) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=read(self._service))


def serving_cpu_s(service: Service) -> float:
    """Return the CPU seconds spent on serving: everything that the engines alone would not need.

    The event loop's thread, the thread that encodes prompts and compiles grammars, and the model
    thread outside of ``Engine.step``. Compute threads work inside of steps only, and do not count.
    """
    return time.thread_time() + service.aside_cpu_s + service.loop.other_cpu_s


_GAUGES: dict[str, tuple[str, Callable[[Service], float]]] = {
    "infopt_http_requests_in_flight": (
        "HTTP requests being answered, other than /health and /metrics.",
        lambda service: service.num_in_flight,
    ),
    "infopt_streams_open": (
        "Answers that the event loop still reads.",
        lambda service: service.num_streams,
    ),
    "infopt_requests_published": (
        "Requests whose tokens the model thread hands on.",
        lambda service: service.loop.num_active,
    ),
    "infopt_event_loop_tasks": (
        "Tasks of the event loop, the one that answers this included.",
        lambda service: len(asyncio.all_tasks()),
    ),
}
_MODEL_GAUGES: dict[str, tuple[str, Callable[[ServedModel], float]]] = {
    "infopt_requests_tracked": (
        "Requests that the engine has not reported as finished.",
        lambda model: model.engine.num_requests,
    ),
    "infopt_compiled_grammars": (
        "Compiled schemas, expressions and grammars that are kept.",
        lambda model: model.compiler.num_compiled,
    ),
}
_COUNTERS: dict[str, tuple[str, Callable[[Service], float]]] = {
    "infopt_step_cpu_seconds": (
        "CPU time of the model thread within steps of the engines.",
        lambda service: service.loop.step_cpu_s,
    ),
    "infopt_serving_cpu_seconds": (
        "CPU time of the server's own threads outside of steps.",
        serving_cpu_s,
    ),
}
