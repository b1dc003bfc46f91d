"""Regressions between two results folders: the same runs, measured before and after.

>>> report = compare_results("results-before", "results", tolerance=0.05)
>>> report.regressions
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import Any

from infopt.errors import ConfigError
from infopt.results.identity import hardware_id
from infopt.results.record import RunRecord
from infopt.results.table import PathOrPaths, flatten_record
from infopt.select.changes import Change, changes_of
from infopt.select.pairing import Pair, Unpaired, pair_records

DEFAULT_TOLERANCE = 0.05

_RATES = {"memory": "bandwidth_bytes_per_s", "arithmetic": "flops_per_s"}


@dataclass(frozen=True, slots=True)
class RunComparison:
    """One run before and after.

    Attributes:
        run: ``stage/slug``.
        changes: Every number that both have; empty where a run failed.
        is_same_machine: False labels a comparison of machines.
        failure: What happened to the run as a whole: ``fails now``, ``works now``, ``still
            fails``, or "" where both ended well.
        notes: What was left out, and why.
    """

    run: str
    changes: tuple[Change, ...]
    is_same_machine: bool
    failure: str = ""
    notes: tuple[str, ...] = ()

    def regressions(self, tolerance: float) -> list[str]:
        """Return what is worse by more than ``tolerance``, as words."""
        broken = [f"{self.run}: {self.failure}"] if self.failure == FAILS_NOW else []
        worse = [c for c in self.changes if c.is_regression(tolerance)]
        return broken + [f"{self.run}: {c.label} x {c.ratio:.4g}" for c in worse]


FAILS_NOW, WORKS_NOW, STILL_FAILS = "fails now", "works now", "still fails"


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """Everything that two results folders say about each other.

    Attributes:
        runs: Runs that were compared.
        unpaired: Runs that were not, with reasons.
        drift: How the machine itself changed: median ratio B / A of the rates that the records
            measured, by name (``memory``, ``arithmetic``); empty where none did.
        tolerance: Share by which a number may be worse.
        identities: Commits, versions that differ, and machines of A and B.
    """

    runs: tuple[RunComparison, ...]
    unpaired: tuple[Unpaired, ...]
    drift: dict[str, float]
    tolerance: float
    identities: dict[str, dict[str, list[str]]]

    @property
    def regressions(self) -> list[str]:
        """What became worse for sure and beyond the tolerance."""
        return [text for run in self.runs for text in run.regressions(self.tolerance)]

    @property
    def counts(self) -> dict[str, int]:
        """How many numbers are better, worse and undecided."""
        found = Counter(change.verdict for run in self.runs for change in run.changes)
        return {verdict: found[verdict] for verdict in ("better", "worse", "undecided")}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "tolerance": self.tolerance,
            "regressions": self.regressions,
            "counts": self.counts,
            "drift": self.drift,
            "identities": self.identities,
            "runs": [
                {
                    "run": run.run,
                    "is_same_machine": run.is_same_machine,
                    "failure": run.failure or None,
                    "notes": list(run.notes),
                    "changes": [change.to_dict(self.tolerance) for change in run.changes],
                }
                for run in self.runs
            ],
            "not_compared": [{"run": u.run, "reason": u.reason} for u in self.unpaired],
        }


def compare_results(
    before: PathOrPaths,
    after: PathOrPaths,
    *,
    tolerance: float = DEFAULT_TOLERANCE,
    allow_other_machine: bool = False,
) -> ComparisonReport:
    """Compare the runs of two results folders number by number.

    A regression is a number that is worse for sure (its interval excludes 1) and by more than the
    tolerance, or a run that fails now. The tolerance also absorbs what no interval knows: how far
    the machine itself drifts between two sessions. Measure the same code twice to learn that.

    Args:
        before: Results folder A.
        after: Results folder B.
        tolerance: Share by which a number may be worse (0.05 is 5 %); 0 or more.
        allow_other_machine: Compare records of different machines, labelled as such.

    Raises:
        OtherMachineError: Machines differ and that was not allowed.
        NothingComparableError: No run can be compared.
        ConfigError: A negative tolerance.
    """
    if not tolerance >= 0:
        raise ConfigError(
            f"tolerance must be 0 or more, got {tolerance!r}.", field="tolerance", value=tolerance
        )
    pairs, unpaired = pair_records(before, after, allow_other_machine=allow_other_machine)
    return ComparisonReport(
        runs=tuple(_compared(pair) for pair in pairs),
        unpaired=tuple(unpaired),
        drift=_drift(pairs),
        tolerance=tolerance,
        identities={
            "before": _identity([pair.before for pair in pairs]),
            "after": _identity([pair.after for pair in pairs]),
        },
    )


def _compared(pair: Pair) -> RunComparison:
    failure = _failure(pair)
    has_quality = pair.before.quality is not None and not pair.quality_reason
    changes = () if failure else tuple(changes_of(*_rows(pair), has_quality))
    notes = [pair.quality_reason] if pair.quality_reason else []
    if failure == FAILS_NOW and pair.after.failure is not None:
        notes.append(f"{pair.after.failure['type']}: {pair.after.failure['message']}")
    return RunComparison(pair.after.run, changes, pair.is_same_machine, failure, tuple(notes))


def _rows(pair: Pair) -> tuple[dict[str, Any], dict[str, Any]]:
    return flatten_record(pair.before), flatten_record(pair.after)


def _failure(pair: Pair) -> str:
    states = (pair.before.status, pair.after.status)
    names = {("ok", "failed"): FAILS_NOW, ("failed", "ok"): WORKS_NOW}
    return names.get(states, STILL_FAILS if states == ("failed", "failed") else "")


def _drift(pairs: list[Pair]) -> dict[str, float]:
    """Return the median ratios of the machine's own rates, as each run measured them."""
    ratios: dict[str, list[float]] = {name: [] for name in _RATES}
    for pair in pairs:
        for name, key in _RATES.items():
            first, second = ((r.roofline or {}).get(key) for r in (pair.before, pair.after))
            if first and second:
                ratios[name].append(second / first)
    return {name: median(values) for name, values in ratios.items() if values}


def _identity(records: list[RunRecord]) -> dict[str, list[str]]:
    """Return the machines, commits and versions behind some records, each once."""
    versions = {f"{name} {v}" for r in records for name, v in r.versions.items() if v}
    return {
        "machines": sorted({hardware_id(record.hardware) for record in records}),
        "commits": sorted({record.commit for record in records}),
        "versions": sorted(versions),
    }
