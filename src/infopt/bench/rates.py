"""The same workload at another rate, for as long as one wants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from infopt.bench.options import check_count, check_positive
from infopt.bench.text import Encoder
from infopt.bench.traces import read_trace
from infopt.bench.workload_types import WorkloadRequest
from infopt.bench.workloads import build_workload
from infopt.errors import WorkloadError

_MAX_REQUESTS = 1_000_000


def at_rate(
    spec: Mapping[str, Any], rate: float, *, arrivals: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a workload whose requests arrive at a rate.

    Args:
        spec: ``{"kind": name, **options}``; the gaps of a trace are stretched or compressed.
        rate: Requests per second.
        arrivals: ``{"kind": ..., **options}`` without a rate (None: as in ``spec``, or independent
            users where that says nothing).

    Raises:
        WorkloadError: The rate is not positive, or the trace is malformed or has none.
    """
    rate = check_positive("rate", rate)
    if spec.get("kind") == "trace":
        return {**spec, "time_scale": _trace_rate(spec) / rate}
    own = spec.get("arrivals")
    base = arrivals or (own if isinstance(own, Mapping) else {"kind": "poisson"})
    return {**spec, "arrivals": {**base, "rate": rate}}


def build_for(
    spec: Mapping[str, Any],
    duration_s: float | None,
    *,
    tokenizer: Encoder | None = None,
    vocab_size: int | None = None,
    seed: int = 0,
) -> list[WorkloadRequest]:
    """Build the requests that arrive within a time.

    Args:
        spec: The workload; with a duration, its ``num_requests`` does not count.
        duration_s: Seconds; None for the workload as it is.
        tokenizer: Turns real text into prompts.
        vocab_size: Without a tokenizer, prompts are random ids below this.
        seed: Seed of the workload.

    Raises:
        WorkloadError: The duration is not positive, or nothing ever arrives after it.
    """
    if duration_s is None:
        return build_workload(spec, tokenizer=tokenizer, vocab_size=vocab_size, seed=seed)
    duration_s = check_positive("duration", duration_s)
    if spec.get("kind") == "trace":
        found = build_workload(spec, tokenizer=tokenizer, vocab_size=vocab_size, seed=seed)
        return [r for r in found if r.arrival_s <= duration_s]
    count = math.ceil(_rate_of(spec) * duration_s) + 1
    while check_count("num_requests", count) <= _MAX_REQUESTS:
        sized = {**spec, "num_requests": count}
        found = build_workload(sized, tokenizer=tokenizer, vocab_size=vocab_size, seed=seed)
        if found[-1].arrival_s > duration_s:
            return [r for r in found if r.arrival_s <= duration_s]
        count *= 2
    raise WorkloadError(
        f"{duration_s:g} s of this workload are more than {_MAX_REQUESTS} requests.",
        field="duration",
        value=duration_s,
        remedy="Shorten it or lower the rate.",
    )


def _trace_rate(spec: Mapping[str, Any]) -> float:
    """Return the requests per second of a trace as it was recorded."""
    trace = read_trace(spec.get("path", ""), limit=spec.get("num_requests"))
    span_s = trace[-1].arrival_s - trace[0].arrival_s
    if span_s <= 0:
        raise WorkloadError(
            "All requests of the trace arrive at once: it has no rate to change.",
            field="path",
            value=str(spec.get("path")),
        )
    return (len(trace) - 1) / span_s


def _rate_of(spec: Mapping[str, Any]) -> float:
    arrivals = spec.get("arrivals")
    rate = arrivals.get("rate") if isinstance(arrivals, Mapping) else None
    if rate is None:
        raise WorkloadError(
            "A duration needs a rate of arrivals.",
            field="duration",
            value=arrivals,
            remedy="Give a rate.",
        )
    return check_positive("rate", rate)
