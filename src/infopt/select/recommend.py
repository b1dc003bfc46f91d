"""Chooses among measured runs: constraints first, then the objective, then simplicity."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import infopt
from infopt.bench.slo import SLO
from infopt.config import EngineConfig
from infopt.errors import ConfigError, ResultError
from infopt.results.identity import code_identity
from infopt.select.energy_order import energy_notes
from infopt.select.evidence import evidence_of
from infopt.select.objectives import Objective, get_objective
from infopt.select.quality import QualityFloor, get_floor
from infopt.select.recommendation import Nearest, Recommendation, Rejected, Status, Tie
from infopt.select.rejudge import NOT_JUDGED
from infopt.select.rows import Row, config_of, nested, number, rows_of, text
from infopt.select.sensitivity import sensitivities, value_text
from infopt.select.slo_filter import filter_runs
from infopt.select.verdict import pair_verdict, ranked, reference_of

if TYPE_CHECKING:
    import pandas as pd


def choose(
    table: pd.DataFrame,
    slo: SLO | str | Mapping[str, Any] | None = None,
    floor: QualityFloor | str | Mapping[str, Any] | None = "default",
    *,
    objective: str | Objective = "goodput",
    reference: str | Sequence[str] | None = None,
) -> Recommendation:
    """Choose the configuration to serve.

    Runs that failed, miss the service-level objective or the quality floor are rejected with the
    reason. Of the others the best by the objective wins, unless the measurements cannot tell it
    from others: then the one with the fewest options off their defaults is taken (if equal the
    reference, else the better one), and the recommendation says so.

    Args:
        table: From ``load_results``; one machine only.
        slo: Limits, the name of a preset, or None.
        floor: Quality floor, its name (``default``, ``lossy``), or None for none.
        objective: What is best among the feasible (see ``OBJECTIVES``).
        reference: Runs that quality is compared with; default: those of the ``baseline`` stage.

    Raises:
        ConfigError: Unknown names, or runs of several machines.
        ResultError: The table has no runs.
    """
    slo_name = slo if isinstance(slo, str) else None
    limits = slo if isinstance(slo, SLO | None) else SLO.from_spec(slo)
    minimum = None if floor is None else get_floor(floor)
    wanted = get_objective(objective)
    _check_one_machine(table)
    marked = filter_runs(table, limits, minimum, reference=reference)
    frame = _Frame(marked, wanted, limits, slo_name, minimum)
    feasible = [row for row in rows_of(marked) if row["feasible"]]
    rows = [row for row in feasible if number(row, wanted.column) is not None]
    return _recommend(frame, ranked(rows, wanted)) if rows else _none_feasible(frame)


@dataclasses.dataclass(frozen=True, slots=True)
class _Frame:
    """What all parts of a recommendation refer to."""

    marked: pd.DataFrame
    objective: Objective
    slo: SLO | None
    slo_name: str | None
    floor: QualityFloor | None


def _recommend(frame: _Frame, rows: list[Row]) -> Recommendation:
    """Build the recommendation from the feasible rows, best first."""
    best = rows[0]
    verdicts = {r["run"]: pair_verdict(best, r, frame.objective) for r in rows[1:]}
    again = [r for r in rows[1:] if config_of(r) == config_of(best)]
    rivals = [r for r in rows[1:] if config_of(r) != config_of(best)]
    tied = [r for r in rivals if verdicts[r["run"]] == "undecided"]
    unproven = [r for r in rivals if verdicts[r["run"]] == "unproven"]
    references = {reference_of(row, frame.objective) for row in rows}
    # Of equally simple ones the reference stays; else the first is taken, which is the best.
    chosen = min([best, *tied], key=lambda r: (_num_changed(r), r["run"] not in references))
    status: Status = "undecided" if tied else "unproven" if unproven else "chosen"
    others = [r for r in rows if r["run"] != chosen["run"]]
    return _build(
        frame,
        status=status,
        reason=_reason(chosen, best, tied, frame.objective),
        config=config_of(chosen),
        run=str(chosen["run"]),
        evidence=evidence_of(chosen, frame.objective),
        ties=_ties(chosen, [r for r in [best, *tied] if r is not chosen], frame.objective),
        sensitivity=sensitivities(frame.marked, chosen, others, frame.objective, frame.slo),
        rejected=_rejected(frame, chosen, others, [*tied, *again, best]),
        notes=_notes(chosen, again, unproven) + energy_notes(chosen, others),
    )


def _none_feasible(frame: _Frame) -> Recommendation:
    """Build the answer where no run may be recommended."""
    nearest = _nearest(frame.marked)
    reason = "No measured configuration keeps every limit"
    reason += f"; {nearest.run} comes nearest: {'; '.join(nearest.misses)}." if nearest else "."
    if any(frame.marked["feasible"]):
        reason = f"No feasible run measured the objective {frame.objective.name}."
    return _build(
        frame,
        status="none_feasible",
        reason=reason,
        nearest=nearest,
        rejected=_rejected(frame, None, [], []),
    )


def _build(frame: _Frame, **parts: Any) -> Recommendation:
    row = rows_of(frame.marked)[0]
    empty: dict[str, Any] = {"config": None, "run": None, "nearest": None}
    empty |= dict.fromkeys(("evidence", "ties", "sensitivity", "rejected", "notes"), ())
    return Recommendation(
        **(empty | parts),
        objective=frame.objective.name,
        slo_name=frame.slo_name,
        slo=frame.slo.to_dict() if frame.slo else None,
        floor=frame.floor.to_dict() if frame.floor else None,
        hardware=nested(row, "hardware"),
        hardware_id=str(row["hardware_id"]),
        infopt_version=infopt.__version__,
        commit=code_identity(),
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


def _reason(chosen: Row, best: Row, tied: Sequence[Row], objective: Objective) -> str:
    label, value = objective.metric.label, value_text(chosen, objective.column)
    if not tied:
        return f"{chosen['run']} has the best {label} of all runs that keep every limit: {value}."
    names = ", ".join(str(r["run"]) for r in [best, *tied] if r is not chosen)
    return (
        f"{chosen['run']} ({label} {value}) cannot be told from {names} by what was measured; it "
        "was taken because it changes the fewest options from their defaults (of equal ones the "
        "reference, else the best)."
    )


def _ties(chosen: Row, others: Sequence[Row], objective: Objective) -> tuple[Tie, ...]:
    return tuple(
        Tie(
            str(row["run"]),
            float(row[objective.column]),
            f"undecided: {value_text(row, objective.column)} against "
            f"{value_text(chosen, objective.column)}, the intervals overlap",
        )
        for row in others
    )


def _rejected(
    frame: _Frame, chosen: Row | None, feasible: Sequence[Row], spared: Sequence[Row]
) -> tuple[Rejected, ...]:
    """Return every run that was not chosen, ties and repetitions left out."""
    spared_runs = {row["run"] for row in spared} | (
        {chosen["run"]} if chosen is not None else set()
    )
    column, label = frame.objective.column, frame.objective.metric.label
    worse = {row["run"] for row in feasible}
    entries = []
    for row in rows_of(frame.marked):
        if row["run"] in spared_runs:
            continue
        reasons = [*row["other_violations"]]
        reasons += [v.message for v in (*row["slo_violations"], *row["quality_violations"])]
        if row["run"] in worse and chosen:
            reasons.append(
                f"{label}: {value_text(row, column)} against {value_text(chosen, column)}"
            )
        elif not reasons:
            reasons.append(text(row, NOT_JUDGED) or f"{label} was not measured")
        entries.append(Rejected(str(row["run"]), tuple(reasons)))
    return tuple(entries)


def _nearest(marked: pd.DataFrame) -> Nearest | None:
    """Return the run with the smallest worst excess over its limits."""
    candidates = [
        (max(v.excess for v in violations), row, violations)
        for row in rows_of(marked)
        if not row["other_violations"]
        and (violations := [*row["slo_violations"], *row["quality_violations"]])
    ]
    if not candidates:
        return None
    _, row, violations = min(candidates, key=lambda entry: entry[0])
    config = config_of(row)
    assert config is not None
    return Nearest(str(row["run"]), tuple(v.message for v in violations), config)


def _notes(chosen: Row, again: Sequence[Row], unproven: Sequence[Row]) -> tuple[str, ...]:
    notes = []
    if text(chosen, NOT_JUDGED):
        notes.append(f"{text(chosen, NOT_JUDGED)}.")
    source = text(chosen, "quality.inherited_from")
    if source:
        notes.append(f"Quality was measured on {source}, which differs in scheduling alone.")
    if again:
        notes.append(f"The same configuration ran again as {_names(again)}.")
    if unproven:
        notes.append(
            f"Unproven against {_names(unproven)}: there is neither a paired ratio nor an interval "
            "for both."
        )
    return tuple(notes)


def _names(rows: Sequence[Row]) -> str:
    return ", ".join(str(row["run"]) for row in rows)


def _num_changed(row: Row) -> int:
    """Return how many options are off their defaults."""
    config = config_of(row)
    assert config is not None
    defaults = EngineConfig(model=config["model"]).to_dict()
    return sum(config[name] != default for name, default in defaults.items())


def _check_one_machine(table: pd.DataFrame) -> None:
    if table.empty:
        raise ResultError("There are no runs to choose from.", field="table", value=0)
    machines = sorted(set(table["hardware_id"])) if "hardware_id" in table.columns else []
    if len(machines) != 1:
        raise ConfigError(
            f"A recommendation holds for one machine; these runs have hardware_id {machines}.",
            field="hardware_id",
            value=machines,
            remedy='Filter first: df[df["hardware_id"] == ...].',
        )
