"""``infopt models``: what the registry knows, and fetching it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from infopt.cli.console import JsonOption, output, print_json

if TYPE_CHECKING:
    from infopt.models.registry import ModelEntry

DEFAULT_REGISTRY_FILE = Path("config/models.yaml")

models_app = typer.Typer(help="List the registered models, or fetch one.")

RegistryOption = Annotated[
    Path | None,
    typer.Option(
        "--registry",
        help="YAML file with further models.",
        show_default=f"{DEFAULT_REGISTRY_FILE} where it exists",
    ),
]


def load_registry(registry: Path | None) -> None:
    """Add the models of a file to the registry: the one given, or the one of this folder."""
    from infopt.models.registry import load_registry_file

    if registry is not None:
        load_registry_file(registry)
    elif DEFAULT_REGISTRY_FILE.is_file():
        load_registry_file(DEFAULT_REGISTRY_FILE)


@models_app.callback(invoke_without_command=True)
def list_command(
    ctx: typer.Context,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the registered models (`infopt models fetch SLUG` fetches one)."""
    load_registry(registry)
    if ctx.invoked_subcommand is not None:
        return
    from infopt.models.registry import list_models

    rows = [describe(entry) for entry in list_models()]
    print_json(rows) if as_json else _print_entries(rows)


@models_app.command("fetch")
def fetch(slug: Annotated[str, typer.Argument(help="Name of the model.")]) -> None:
    """Fetch a model into the cache (checked against its checksum) and print where it is."""
    from infopt.models.registry import resolve_model

    typer.echo(str(resolve_model(slug).path))


def describe(entry: ModelEntry) -> dict[str, Any]:
    """Return an entry as plain data; ``path`` is null where it has not been fetched."""
    from infopt.models.local_copy import local_copy

    path = local_copy(entry)
    return {
        "slug": entry.slug,
        "format": entry.format,
        "stored_dtype": entry.stored_dtype,
        "licence": entry.licence,
        "description": entry.description,
        "path": None if path is None else str(path),
    }


def _print_entries(rows: list[dict[str, Any]]) -> None:
    console = output()
    for row in rows:
        facts = f"{row['stored_dtype']} {row['format']}, {row['licence'] or 'licence not stated'}"
        here = "[green]fetched[/]" if row["path"] else "not fetched"
        console.print(f"[bold]{escape(row['slug'])}[/]  {escape(facts)}, {here}", soft_wrap=True)
        console.print(f"    [dim]{escape(row['description'])}[/]", soft_wrap=True)
