"""``infopt recommend``: the last recommendation, readably."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from infopt.cli.console import JsonOption, note, output, print_json
from infopt.cli.values import parse_spec

if TYPE_CHECKING:
    from infopt.select import Recommendation

DEFAULT_PATH = Path("results/recommendation.yaml")
NUM_REJECTED_SHOWN = 8

_STATUS = {
    "chosen": "[green]chosen[/]",
    "undecided": "[yellow]undecided[/]",
    "unproven": "[yellow]unproven[/]",
    "none_feasible": "[red]nothing is feasible[/]",
}


def recommend(
    *,
    path: Annotated[
        Path, typer.Argument(help="Recommendation, or the results folder that it is in.")
    ] = DEFAULT_PATH,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show every run that was not chosen.")
    ] = False,
    as_json: JsonOption = False,
    objective: Annotated[
        str | None,
        typer.Option(
            help="Choose again from the same measurements: the best at this (goodput, ...).",
            show_default=False,
        ),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            help="... under this objective: a preset, or limits as in ttft_s=0.5,percentile=90.",
            show_default=False,
        ),
    ] = None,
    floor: Annotated[
        str | None,
        typer.Option(
            help="... with this quality floor: default, lossy, none, or max_kl=0.05.",
            show_default=False,
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(help="Write what was chosen again to this file.", show_default=False),
    ] = None,
) -> None:
    """Print a recommendation: what to run, the evidence, and why the others lost."""
    from infopt.select import read_recommendation, write_recommendation

    if path.is_dir():
        path = path / DEFAULT_PATH.name
    recommendation = read_recommendation(path)
    if any(demand is not None for demand in (objective, slo, floor)):
        from infopt.experiments.choose_again import choose_again

        recommendation = choose_again(
            recommendation,
            path.parent,
            objective=objective,
            slo=None if slo is None else parse_spec(slo, "slo"),
            floor=_floor(floor, recommendation),
        )
    if write is not None:
        note(f"wrote {write_recommendation(recommendation, write)}")
    if as_json:
        print_json(recommendation.to_dict())
        return
    console = output()
    for line in lines_of(recommendation, None if show_all else NUM_REJECTED_SHOWN):
        console.print(line, soft_wrap=True)


def _floor(floor: str | None, recommendation: Recommendation) -> str | dict[str, Any] | None:
    if floor is None:
        return recommendation.floor
    return None if floor == "none" else parse_spec(floor, "floor")


def lines_of(recommendation: Recommendation, max_rejected: int | None) -> Iterator[str]:
    """Yield the recommendation as lines with rich markup.

    Args:
        recommendation: What was chosen.
        max_rejected: Runs not chosen to show at most (None: all).
    """
    title = recommendation.run or "no run"
    yield f"[bold]{escape(title)}[/]  {_STATUS[recommendation.status]}"
    yield escape(recommendation.reason)
    yield from _block("Asked for", _demands(recommendation))
    yield from _block("Configuration (what differs from the defaults)", _changes(recommendation))
    yield from _block("Evidence [low, high]: 95 % interval", _evidence(recommendation))
    yield from _block(
        "Cannot be told from it", [f"{t.run}: {t.reason}" for t in recommendation.ties]
    )
    yield from _block("Against what one would serve otherwise", _baselines(recommendation))
    yield from _block("What each technique is worth [95 % interval]", _ablation(recommendation))
    yield from _block("Whole and parts", [i.message for i in recommendation.interactions])
    yield from _block("Trade-off of the finalists", _front(recommendation))
    yield from _block("What would change it", [s.message for s in recommendation.sensitivity])
    if recommendation.nearest is not None:
        nearest = recommendation.nearest
        yield from _block(f"Nearest: {nearest.run}", list(nearest.misses))
    rejected = [f"{r.run}: {'; '.join(r.reasons)}" for r in recommendation.rejected]
    shown = rejected[:max_rejected]
    if len(shown) < len(rejected):
        shown.append(f"... and {len(rejected) - len(shown)} more (--all shows them)")
    yield from _block("Not chosen", shown)
    yield from _block("Notes", list(recommendation.notes))
    yield from _block("Measured on", [_machine(recommendation)])


def _block(title: str, entries: list[str]) -> Iterator[str]:
    if entries:
        yield f"\n[bold]{escape(title)}[/]"
        yield from (f"  {escape(entry)}" for entry in entries)


def _demands(recommendation: Recommendation) -> list[str]:
    lines = [f"best {recommendation.objective}"]
    if recommendation.slo is not None:
        limits = dict(recommendation.slo)
        percentile = limits.pop("percentile", None)
        text = ", ".join(f"{name} <= {limit:g}" for name, limit in limits.items() if limit)
        name = f" ({recommendation.slo_name})" if recommendation.slo_name else ""
        lines.append(f"objective{name}: {text} at p{percentile:g}")
    if recommendation.floor is not None:
        limits = ", ".join(f"{name} {value}" for name, value in recommendation.floor.items())
        lines.append(f"quality floor: {limits}")
    return lines


def _changes(recommendation: Recommendation) -> list[str]:
    """Return the options that are not at their defaults."""
    return [f"{name}: {value}" for name, value in recommendation.changed_options().items()]


def _evidence(recommendation: Recommendation) -> list[str]:
    from infopt.select.html import format_evidence

    lines = []
    width = max((len(e.label) for e in recommendation.evidence), default=0)
    for entry in recommendation.evidence:
        lines.append(f"{entry.label:<{width}}  {format_evidence(entry)} {entry.unit}".rstrip())
    return lines


def _baselines(recommendation: Recommendation) -> list[str]:
    return [gain.message for gain in recommendation.baselines]


def _ablation(recommendation: Recommendation) -> list[str]:
    from infopt.results.html import format_ratio, format_value

    lines = []
    for effect in recommendation.ablation:
        text = f"{effect.technique}, {effect.label}: {format_value(effect.composed, 3)}"
        text += f" with it, {format_value(effect.without, 3)} without"
        if effect.worth is not None:
            ends = (effect.low or effect.worth, effect.high or effect.worth)
            text += f", {format_ratio(effect.worth, *ends)}"
        lines.append(f"{text} ({effect.verdict})")
    return lines


def _front(recommendation: Recommendation) -> list[str]:
    front = recommendation.front
    if front is None or not front.axes:
        return []
    lines = [
        f"on the front of {', '.join(front.axes)}: {', '.join(front.runs)}",
        f"knee: {front.knee}; hypervolume: {front.hypervolume:.3g} of the space",
    ]
    lines += [f"left out: {axis} ({why})" for axis, why in front.left_out.items()]
    return lines + [f"no part in it: {run} ({why})" for run, why in front.excluded.items()]


def _machine(recommendation: Recommendation) -> str:
    hardware = recommendation.hardware
    parts = [hardware.get("cpu_model"), f"{hardware.get('num_cores')} cores"]
    parts += list(hardware.get("gpus") or [])
    parts += [f"infopt {recommendation.infopt_version}", recommendation.created]
    return ", ".join(str(part) for part in parts if part)
