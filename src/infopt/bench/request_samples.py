"""Latencies of single requests as flat lists of numbers, and back.

A record that keeps them can be judged by another objective without measuring again. Requests of
several runs follow each other: ``requests.run`` says to which run each belongs, and gaps between
tokens are one list, ``requests.num_gaps`` of them for each request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from infopt.bench.latency import RequestStatus, RequestTiming
from infopt.errors import ResultError

Samples = Mapping[str, Sequence[float | None]]

_TIMES = ("ttft_s", "tpot_s", "e2e_s")
PARTNER = "partner."
"""Before the names of samples of the runs that a candidate was paired with."""

_DIGITS = 6
"""Clocks tell no less than a microsecond apart."""


class TimedRun(Protocol):
    """A load run, wherever it was measured."""

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        ...

    @property
    def timings(self) -> list[RequestTiming]:
        """Times of the measured requests, failed ones included."""
        ...


@dataclass(frozen=True, slots=True)
class RequestLatency:
    """What an objective asks of a request (see `infopt.bench.latency.RequestTiming`)."""

    status: RequestStatus
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    itl_s: list[float]


@dataclass(frozen=True, slots=True)
class RequestRun:
    """The requests of one run.

    Attributes:
        duration_s: Length of the run in seconds.
        requests: All measured requests, failed ones included.
    """

    duration_s: float
    requests: list[RequestLatency]


def samples_of_requests(
    results: Sequence[TimedRun], prefix: str = ""
) -> dict[str, list[float | None]]:
    """Return the latencies of all requests as lists.

    Args:
        results: Runs.
        prefix: Before each name, for runs of another configuration in the same record.
    """
    rows = [(i, t) for i, result in enumerate(results) for t in result.timings]
    lists: dict[str, list[float | None]] = {
        "runs.duration_s": [round(r.duration_s, _DIGITS) for r in results],
        "requests.run": [float(i) for i, _ in rows],
        "requests.is_completed": [float(t.status == "completed") for _, t in rows],
        "requests.num_gaps": [float(len(t.itl_s)) for _, t in rows],
        "requests.gap_s": [round(gap, _DIGITS) for _, t in rows for gap in t.itl_s],
    }
    for name in _TIMES:
        lists[f"requests.{name}"] = [_rounded(getattr(t, name)) for _, t in rows]
    return {f"{prefix}{name}": values for name, values in lists.items()}


def runs_of_samples(samples: Samples | None, prefix: str = "") -> list[RequestRun] | None:
    """Return the runs that `samples_of_requests` wrote; None where a record has none.

    Args:
        samples: The record's.
        prefix: As they were written with.

    Raises:
        ResultError: The lists do not belong together.
    """
    if not samples or f"{prefix}requests.run" not in samples:
        return None
    runs, durations, done, counts, gaps, *times = (
        _list(samples, prefix + name)
        for name in (
            *("requests.run", "runs.duration_s", "requests.is_completed", "requests.num_gaps"),
            *("requests.gap_s", *(f"requests.{name}" for name in _TIMES)),
        )
    )
    lengths = {len(values) for values in (runs, done, counts, *times)}
    if len(lengths) != 1 or sum(int(count or 0) for count in counts) != len(gaps):
        raise ResultError(
            "The samples of a record's requests have different lengths.",
            field=f"samples.{prefix}requests",
            value=sorted(lengths),
            remedy="Measure the run again.",
        )
    rest = iter(gaps)
    found = [RequestRun(float(duration or 0.0), []) for duration in durations]
    for run, is_done, count, ttft, tpot, e2e in zip(runs, done, counts, *times, strict=True):
        own = [float(gap or 0.0) for gap in islice(rest, int(count or 0))]
        status: RequestStatus = "completed" if is_done else "failed"
        found[int(run or 0)].requests.append(RequestLatency(status, ttft, tpot, e2e, own))
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def _list(samples: Samples, name: str) -> Sequence[float | None]:
    try:
        return samples[name]
    except KeyError:
        raise ResultError(
            f"A record with samples of its requests lacks {name!r}.",
            field=f"samples.{name}",
            value=sorted(samples),
            remedy="Measure the run again.",
        ) from None
