"""Judges a measured run by another objective than the one it was measured for.

What happened to the requests stays; which of them count as good does not. Where a record has the
latencies of its requests, goodput under any limits follows from them, with its interval over the
runs and the paired ratio to the runs it took turns with. Where it has none, its goodput is unknown:
that under the old objective is no estimate of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infopt.bench.request_samples import PARTNER, RequestRun, runs_of_samples
from infopt.bench.slo import SLO, evaluate_slo
from infopt.bench.stats import bootstrap_interval, paired_ratio
from infopt.results.record import RunRecord, Section

GOODPUT = "slo.goodput_requests_per_s"
PAIRED = "goodput_requests_per_s"
_REASON = "slo_not_judged"
NOT_JUDGED = f"extra.{_REASON}"
"""Column with the reason why a run could not be judged by the objective."""

_NO_SAMPLES = (
    "Goodput under this objective is unknown: the record was measured under another one and has no "
    "latencies of single requests"
)


def judge_again(record: RunRecord, slo: SLO, name: str = "custom") -> RunRecord:
    """Return a record as it would be had it been measured under an objective.

    Args:
        record: The run; it stays as it is where it failed or was judged by this objective.
        slo: The objective.
        name: Its preset, or ``custom``.

    Raises:
        ResultError: Its samples of requests do not belong together.
    """
    if record.status != "ok" or record.slo is None or _is_judged_by(record.slo, slo):
        return record
    runs = runs_of_samples(record.samples)
    if runs is None:
        old = {key: record.slo.get(key) for key in ("name", "limits")}
        reason = {**record.extra, _REASON: _NO_SAMPLES}
        return _with_goodput(record, old, None, None).replace(extra=reason)
    head = {"name": name, "limits": slo.to_dict()}
    requests = [request for run in runs for request in run.requests]
    report = evaluate_slo(slo, requests, sum(run.duration_s for run in runs))
    pairs = _paired(record, runs, slo)
    interval = bootstrap_interval(_goodputs(runs, slo)).to_dict()
    return _with_goodput(record, {**head, **report.to_dict()}, interval, pairs)


def _is_judged_by(section: Section, slo: SLO) -> bool:
    limits = {k: v for k, v in (section.get("limits") or {}).items() if v is not None}
    return limits == {k: v for k, v in slo.to_dict().items() if v is not None}


def _with_goodput(
    record: RunRecord,
    section: dict[str, Any],
    interval: dict[str, Any] | None,
    pairs: dict[str, Any] | None,
) -> RunRecord:
    """Return the record with these numbers, and without those of the old objective."""
    intervals = {k: v for k, v in (record.intervals or {}).items() if k != GOODPUT}
    comparison = {k: v for k, v in (record.comparison or {}).items() if k != PAIRED}
    return record.replace(
        slo=section,
        intervals=intervals | ({GOODPUT: interval} if interval else {}),
        comparison=comparison | ({PAIRED: pairs} if pairs else {}) or None,
    )


def _paired(record: RunRecord, runs: Sequence[RequestRun], slo: SLO) -> dict[str, Any] | None:
    """Return the paired ratio, where each run of every pair has some goodput."""
    partners = runs_of_samples(record.samples, PARTNER)
    known = next(iter((record.comparison or {}).values()), None)
    if partners is None or known is None:
        return None
    first, second = _goodputs(partners, slo), _goodputs(runs, slo)
    if len(first) != len(second) or not all(value > 0 for value in (*first, *second)):
        return None
    ratio = paired_ratio(first, second, higher_is_better=True)
    return {**ratio.to_dict(), "reference": known["reference"]}


def _goodputs(runs: Sequence[RequestRun], slo: SLO) -> list[float]:
    reports = [evaluate_slo(slo, run.requests, run.duration_s) for run in runs]
    return [report.goodput_requests_per_s or 0.0 for report in reports]
