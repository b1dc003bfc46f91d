"""``infopt doctor``: what this machine can run, what is missing, and how to get it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from infopt.cli.console import JsonOption, output, print_json
from infopt.cli.models import RegistryOption, load_registry
from infopt.errors import ConfigError

if TYPE_CHECKING:
    from infopt.doctor import Section

MARKS = {"ok": "[green]ok[/]", "info": "", "warning": "[bold yellow]warning[/]", "missing": "none"}


def doctor(
    *,
    as_json: JsonOption = False,
    self_test: Annotated[
        bool, typer.Option(help="Multiply for a few seconds to see whether batch invariance holds.")
    ] = True,
    model: Annotated[
        str | None, typer.Option(help="Say instead what this model needs and what fits.")
    ] = None,
    kv_gib: Annotated[
        float | None, typer.Option(help="With --model: memory for keys and values, in GiB.")
    ] = None,
    registry: RegistryOption = None,
) -> None:
    """Say what this machine can run, what is missing, and how to get it."""
    from infopt.doctor import examine, to_dict

    if kv_gib is not None and model is None:
        raise ConfigError(
            f"--kv-gib {kv_gib:g} needs --model.",
            field="kv_gib",
            value=kv_gib,
            remedy="Say which model's keys and values that memory is for.",
        )
    load_registry(registry)
    sections = [_model(model, kv_gib)] if model else examine(self_test=self_test)
    if as_json:
        print_json(to_dict(sections))
        return
    for section in sections:
        output().print(_table(section))


def _model(model: str, kv_gib: float | None) -> Section:
    from infopt.doctor_model import examine_model

    return examine_model(model, kv_gib=kv_gib)


def _table(section: Section) -> Table:
    table = Table(
        title=f"[bold]{section.title}[/]", title_justify="left", show_header=False, box=None
    )
    table.add_column(min_width=4)
    table.add_column(min_width=20, overflow="fold")
    table.add_column(overflow="fold")
    for check in section.checks:
        detail = escape(check.detail)
        if check.remedy and check.status in ("missing", "warning"):
            detail += f"\n[cyan]{escape(check.remedy)}[/]"
        table.add_row(MARKS[check.status], escape(check.name), detail)
    return table
