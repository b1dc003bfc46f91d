"""Which runs keep the service-level objective and the quality floor, and what the others miss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from infopt.bench.slo import SLO
from infopt.select.objectives import add_derived_columns
from infopt.select.quality import QualityFloor, check_quality
from infopt.select.rows import Row, check_runs, number, reference_rows, rows_of, text
from infopt.select.violation import Violation, above, not_measured

if TYPE_CHECKING:
    import pandas as pd

RECORDED_PERCENTILES = (50, 90, 99)


def check_slo(row: Row, slo: SLO) -> list[Violation]:
    """Return the limits that a run does not keep at the objective's percentile.

    A percentile that was not measured, or for which the sample was too small, is not kept.
    Latencies describe completed requests only, so too many that did not complete are a violation.

    Args:
        row: A row of ``load_results``.
        slo: The objective.
    """
    found = []
    for name, limit in slo.limits.items():
        column, value = attained(row, name, slo)
        if value is None:
            found.append(not_measured(name, column, limit, _why_missing(row, name, slo)))
        elif value > limit:
            found.append(above(name, column, value, limit))
    return found + _check_completion(row, slo)


def attained(row: Row, name: str, slo: SLO) -> tuple[str, float | None]:
    """Return column and value of a latency at the objective's percentile (None: not measured).

    Args:
        row: A row of ``load_results``.
        name: ``ttft_s``, ``tpot_s``, ``itl_s`` or ``e2e_s``.
        slo: The objective.
    """
    if slo.percentile in RECORDED_PERCENTILES:
        column = f"latency.{name}.p{slo.percentile:.0f}"
        return column, number(row, column)
    # Other percentiles are in the record only if the run was judged at just that one.
    column = f"slo.attained.{name}"
    return column, number(row, column) if _is_judged_at(row, slo) else None


def filter_runs(
    table: pd.DataFrame,
    slo: SLO | None,
    floor: QualityFloor | None,
    *,
    reference: str | Sequence[str] | None = None,
) -> pd.DataFrame:
    """Mark the runs that may be recommended.

    Args:
        table: From ``load_results``.
        slo: The objective; None is no limit.
        floor: The quality floor; None is no floor.
        reference: Reference runs (see ``reference_rows``).

    Returns:
        The table with derived columns and ``slo_violations``, ``quality_violations`` (lists of
        ``Violation``), ``other_violations`` (list of texts: the run failed, is not infopt's),
        ``feasible`` (bool) and ``reasons`` (one text, empty where feasible).
    """
    check_runs(table, "The SLO filter")
    references = reference_rows(table, reference)
    marked = add_derived_columns(table, reference)
    rows = rows_of(marked)
    other = [_other_faults(row) for row in rows]
    by_slo = [check_slo(r, slo) if slo and not o else [] for r, o in zip(rows, other, strict=True)]
    by_quality = [
        check_quality(r, references, floor) if floor and not o else []
        for r, o in zip(rows, other, strict=True)
    ]
    reasons = [
        "; ".join([*o, *(v.message for v in (*s, *q))])
        for o, s, q in zip(other, by_slo, by_quality, strict=True)
    ]
    marked["slo_violations"] = by_slo
    marked["quality_violations"] = by_quality
    marked["other_violations"] = other
    marked["reasons"] = reasons
    marked["feasible"] = [not reason for reason in reasons]
    return marked


def _other_faults(row: Row) -> list[str]:
    if row["status"] != "ok":
        return [f"The run failed: {text(row, 'failure.message') or 'no reason was recorded'}"]
    if text(row, "config.model") is None:
        return ["Another engine ran, so there is no configuration to serve"]
    return []


def _why_missing(row: Row, name: str, slo: SLO) -> str:
    """Return why a record does not have the percentile of a latency ("" where nobody knows)."""
    if slo.percentile not in RECORDED_PERCENTILES and not _is_judged_at(row, slo):
        kept = ", ".join(f"p{p}" for p in RECORDED_PERCENTILES)
        return f"records keep {kept} and that of their own objective, not p{slo.percentile:g}"
    count = number(row, f"latency.{name}.count")
    return "" if count is None else f"{count:.0f} samples are too few"


def _is_judged_at(row: Row, slo: SLO) -> bool:
    """Tell whether a run was judged at the percentile of an objective."""
    return number(row, "slo.limits.percentile") == slo.percentile


def _check_completion(row: Row, slo: SLO) -> list[Violation]:
    num_requests = number(row, "throughput.num_requests")
    num_completed = number(row, "throughput.num_completed")
    if not num_requests or num_completed is None:
        return []
    share, limit = 1 - num_completed / num_requests, 1 - slo.percentile / 100
    if share <= limit:
        return []
    missing = num_requests - num_completed
    message = (
        f"{missing:.0f} of {num_requests:.0f} requests did not complete ({share:.3%}; the limit "
        f"is {limit:.3%})"
    )
    return [Violation("completion", "throughput.incomplete_share", share, limit, message)]
