"""Where the command line writes: results to stdout, everything about them to stderr."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from infopt.errors import InfoptError

JsonOption = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def output() -> Console:
    """Return a console on the current stdout (looked up late, so that tests can capture it)."""
    return Console(file=sys.stdout, highlight=False)


def messages() -> Console:
    """Return a console on the current stderr, for progress, notes and errors."""
    return Console(file=sys.stderr, highlight=False)


def print_error(error: InfoptError) -> None:
    """Print what went wrong in red and the remedy, if there is one, below it."""
    console = messages()
    console.print(f"[bold red]Error:[/] [red]{escape(error.message)}[/]", soft_wrap=True)
    if error.remedy:
        console.print(escape(error.remedy), soft_wrap=True)


def note(text: str) -> None:
    """Print what is going on, dimly, beside the result."""
    messages().print(f"[dim]{escape(text)}[/]", soft_wrap=True)


def print_json(data: Any) -> None:
    """Print plain data as strict JSON: a NaN would be a bug, not a value."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))
