"""Which records of two results folders may be compared, and why the others may not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infopt.errors import ResultError
from infopt.results.identity import hardware_id
from infopt.results.record import RunRecord
from infopt.results.table import PathOrPaths, read_records


class OtherMachineError(ResultError):
    """Two results folders come from different machines: a difference may be theirs."""


class NothingComparableError(ResultError):
    """No run occurs in both folders with the same configuration, workload and seeds."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One run that both folders have.

    Attributes:
        before: Record of A.
        after: Record of B.
        quality_reason: Why quality is not compared ("" where it is).
    """

    before: RunRecord
    after: RunRecord
    quality_reason: str = ""

    @property
    def is_same_machine(self) -> bool:
        """Whether both were measured on the same hardware."""
        return hardware_id(self.before.hardware) == hardware_id(self.after.hardware)


@dataclass(frozen=True, slots=True)
class Unpaired:
    """A run that is not compared, and the reason."""

    run: str
    reason: str


def pair_records(
    before: PathOrPaths, after: PathOrPaths, *, allow_other_machine: bool = False
) -> tuple[list[Pair], list[Unpaired]]:
    """Match the records of two results folders by stage, slug, configuration, workload and seeds.

    Args:
        before: Results folder A (or files).
        after: Results folder B.
        allow_other_machine: Pair records of different machines as well.

    Returns:
        The pairs and the runs left out, both in the order of their names. Failed runs are paired,
        too: that a run fails now is a finding.

    Raises:
        OtherMachineError: The fingerprints of a pair differ and that was not allowed.
        NothingComparableError: There is no pair.
        ResultError: A folder has no records, a broken one, or the same run twice.
    """
    first, second = _by_run(before, "A"), _by_run(after, "B")
    pairs, unpaired = [], []
    for run in sorted(first.keys() | second.keys()):
        reason = _difference(first.get(run), second.get(run))
        if reason:
            unpaired.append(Unpaired(run, reason))
        else:
            pairs.append(Pair(first[run], second[run], _quality_reason(first[run], second[run])))
    if not pairs:
        raise NothingComparableError(
            f"None of the {len(unpaired)} runs can be compared.",
            field="results",
            value=len(unpaired),
            remedy=f"First reason: {unpaired[0].run}: {unpaired[0].reason}.",
        )
    if not allow_other_machine:
        _check_machines(pairs)
    return pairs, unpaired


def _by_run(path: PathOrPaths, name: str) -> dict[str, RunRecord]:
    records: dict[str, RunRecord] = {}
    for record in read_records(path):
        if record.run in records:
            raise ResultError(
                f"Results {name} hold the run {record.run!r} twice.",
                field="run",
                value=record.run,
                remedy="Give one results folder, not several.",
            )
        records[record.run] = record
    return records


def _check_machines(pairs: Sequence[Pair]) -> None:
    others = [pair for pair in pairs if not pair.is_same_machine]
    if not others:
        return
    ids = [hardware_id(r.hardware) for r in (others[0].before, others[0].after)]
    raise OtherMachineError(
        f"{len(others)} of {len(pairs)} runs were measured on different machines: "
        f"{others[0].before.run} on {ids[0]} and on {ids[1]}.",
        field="hardware_id",
        value=ids,
        remedy="Measure both on one machine, or say --allow-other-machine "
        "(allow_other_machine=True): every difference is then labelled as one of machines.",
    )


def _difference(before: RunRecord | None, after: RunRecord | None) -> str:
    """Return why two records are not of the same thing, or ""."""
    if before is None:
        return "only in B"
    if after is None:
        return "only in A"
    first, second = _config(before), _config(after)
    for what, one, other in (
        ("configuration", first, second),
        ("workload", before.workload, after.workload),
        ("seeds", {"seeds": list(before.seeds)}, {"seeds": list(after.seeds)}),
    ):
        found = _first_difference(one, other)
        if found:
            return f"another {what}: {found}"
    return ""


def _config(record: RunRecord) -> dict[str, Any] | None:
    """Return the whole configuration: options that are newer than the record at their defaults."""
    config = record.engine_config()
    return None if config is None else config.to_dict()


def _first_difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """Return the dotted name and both values of the first difference, or "" (absent is None)."""
    first, second = dict(before or {}), dict(after or {})
    for key in [*first, *(k for k in second if k not in first)]:
        one, other = first.get(key), second.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            nested = _first_difference(one, other)
            if nested:
                return f"{key}.{nested}"
        elif one != other:
            return f"{key} {one!r} and {other!r}"
    return ""


def _quality_reason(before: RunRecord, after: RunRecord) -> str:
    if before.quality is None or after.quality is None:
        return ""
    found = _first_difference(before.quality["protocol"], after.quality["protocol"])
    return f"another quality protocol: {found}" if found else ""
