"""``infopt compare``: what became better or worse between two results folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from infopt.cli.console import JsonOption, output, print_json

if TYPE_CHECKING:
    from infopt.select.changes import Change
    from infopt.select.compare import ComparisonReport, RunComparison

EXIT_REGRESSION = 1
"""Exit code when something is worse beyond the tolerance (a user's mistake is 2)."""

_COLOURS = {"better": "green", "worse": "red", "undecided": "dim"}


def compare(
    *,
    before: Annotated[Path, typer.Argument(help="Results folder before (A).")],
    after: Annotated[Path, typer.Argument(help="Results folder after (B).")],
    tolerance: Annotated[
        float, typer.Option(help="Share by which a number may be worse: 0.05 is 5 %.")
    ] = 0.05,
    allow_other_machine: Annotated[
        bool,
        typer.Option("--allow-other-machine", help="Compare although the machines differ."),
    ] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show undecided numbers and runs left out as well.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two results folders; exit code 1 if something is worse beyond the tolerance.

    Runs are matched by stage and name, and compared only if configuration, workload and seeds are
    the same; quality only under the same protocol.
    """
    from infopt.select.compare import compare_results

    report = compare_results(
        before, after, tolerance=tolerance, allow_other_machine=allow_other_machine
    )
    if as_json:
        print_json(report.to_dict())
    else:
        console = output()
        for line in lines_of(report, show_all):
            console.print(line, soft_wrap=True)
    if report.regressions:
        raise typer.Exit(EXIT_REGRESSION)


def lines_of(report: ComparisonReport, show_all: bool) -> Iterator[str]:
    """Yield the comparison as lines with rich markup."""
    for run in report.runs:
        yield from _run_lines(run, report.tolerance, show_all)
    if show_all and report.unpaired:
        yield "[bold]Not compared[/]"
        yield from (f"  {escape(u.run)}: {escape(u.reason)}" for u in report.unpaired)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items())
    yield f"{len(report.runs)} runs compared, {len(report.unpaired)} not; numbers: {counts}"
    if report.drift:
        rates = ", ".join(f"{name} x {ratio:.3g}" for name, ratio in report.drift.items())
        yield f"the machine's own rates, measured beside the runs: {rates}"
    found = len(report.regressions)
    limit = f"beyond {100 * report.tolerance:g} %"
    yield f"[red]{found} regressions {limit}[/]" if found else f"no regression {limit}"


def _run_lines(run: RunComparison, tolerance: float, show_all: bool) -> Iterator[str]:
    changes = [c for c in run.changes if show_all or c.verdict != "undecided"]
    if not (changes or run.failure or (show_all and run.notes)):
        return
    label = "" if run.is_same_machine else "  [yellow]other machine[/]"
    failure = f"  {run.failure}" if run.failure else ""
    yield f"[bold]{escape(run.run)}[/]{failure}{label}"
    yield from (f"  {escape(note)}" for note in run.notes)
    yield from (f"  {_change_line(change, tolerance)}" for change in changes)


def _change_line(change: Change, tolerance: float) -> str:
    from infopt.results.html import format_value

    text = f"x {format_value(change.ratio)}"
    if change.low is not None and change.high is not None:
        text += f" [{format_value(change.low)}, {format_value(change.high)}]"
    mark = "  REGRESSION" if change.is_regression(tolerance) else ""
    note = f" ({change.note})" if change.note else ""
    colour = _COLOURS[change.verdict]
    verdict = f"[{colour}]{change.verdict}[/]"
    return f"{escape(change.label)}  {escape(text)}  {verdict}{escape(note)}{mark}"
