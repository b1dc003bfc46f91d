"""``infopt explain``: why a run is as fast as it is, and why it won or lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from infopt.cli.console import JsonOption, output, print_json
from infopt.errors import ResultError, nearest

if TYPE_CHECKING:
    from infopt.results import RunRecord


def explain(
    *,
    run: Annotated[str, typer.Argument(help="stage/slug, a slug alone, or the path of a record.")],
    results: Annotated[Path, typer.Option(help="Results folder.")] = Path("results"),
    within: Annotated[
        float,
        typer.Option(help="Factor by which prediction and measurement may differ."),
    ] = 1.25,
    as_json: JsonOption = False,
) -> None:
    """Explain a run: its bytes, FLOPs, bound and regime, and why it won or lost."""
    from infopt.results import flatten_record
    from infopt.select.explain import explain_record
    from infopt.select.explain_words import reference_of

    path = find_record(run, results)
    record = _read(path)
    name = reference_of(flatten_record(record))
    base = None if name is None else reference_path(path, name)
    reference = _read(base) if base is not None and base.is_file() else None
    found = explain_record(record, reference, within=within)
    if as_json:
        print_json(found.to_dict())
        return
    console = output()
    console.print(f"[bold]{escape(found.run)}[/]  {found.status}", soft_wrap=True)
    for sentence in found.sentences:
        console.print(f"  {escape(sentence)}", soft_wrap=True)


def find_record(run: str, results: Path) -> Path:
    """Return the file of a run given as path, ``stage/slug`` or slug.

    Raises:
        ResultError: There is none, or the slug alone occurs in several stages.
    """
    if run.endswith(".json") and Path(run).is_file():
        return Path(run)
    from infopt.results import find_records

    files = {f"{file.parent.name}/{file.stem}": file for file in find_records(results)}
    found = [name for name in files if run in (name, name.split("/", 1)[1])]
    if len(found) == 1:
        return files[found[0]]
    if found:
        raise ResultError(
            f"The slug {run!r} occurs in several stages: {', '.join(found)}.",
            field="run",
            value=run,
            remedy="Give stage/slug.",
        )
    names = [*files, *(name.split("/", 1)[1] for name in files)]
    raise ResultError(
        f"There is no run {run!r} in {results}.{nearest(run, names)}",
        field="run",
        value=run,
        remedy="Give stage/slug as in results/runs, or the path of a record (--results: folder).",
    )


def reference_path(path: Path, name: str) -> Path:
    """Return where a reference lies: in ``runs/<stage>/``, as the record compared with it.

    Args:
        path: Record.
        name: ``stage/slug`` of its reference.
    """
    return path.resolve().parent.parent / f"{name}.json"


def _read(path: Path) -> RunRecord:
    from infopt.results import RunRecord

    return RunRecord.read(path)
