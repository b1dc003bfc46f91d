"""The Typer application: global options, named errors, and the commands."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from infopt import __version__
from infopt.cli.bench import bench_app
from infopt.cli.compare import compare
from infopt.cli.console import print_error
from infopt.cli.doctor import doctor
from infopt.cli.eval import evaluate
from infopt.cli.explain import explain
from infopt.cli.generate import generate
from infopt.cli.models import models_app
from infopt.cli.quantize import quantize
from infopt.cli.recommend import recommend
from infopt.cli.serve import serve
from infopt.cli.train_draft import train_draft
from infopt.cli.train_tiny import train_tiny
from infopt.errors import InfoptError

EXIT_USER_ERROR = 2
"""Exit code of everything the user can fix, as for a misspelt option."""


class ErrorGroup(TyperGroup):
    """Command group that prints what a user can put right; a bug keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a user's mistake is one message and exit code 2."""
        try:
            return super().invoke(ctx)
        except InfoptError as error:
            if ctx.params.get("debug"):
                raise
            print_error(error)
            raise typer.Exit(EXIT_USER_ERROR) from error
        except OSError as error:
            if error.filename is None or ctx.params.get("debug"):
                raise  # not about a file: a broken pipe, or a bug
            print_error(_file_error(error))
            raise typer.Exit(EXIT_USER_ERROR) from error


def _file_error(error: OSError) -> InfoptError:
    return InfoptError(
        f"{error.filename}: {error.strerror}.",
        field="path",
        value=error.filename,
        remedy="Look at the path, its rights and the free space (--debug shows what it was for).",
    )


app = typer.Typer(
    name="infopt",
    cls=ErrorGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Finds, proves and serves the LLM-inference configuration that meets your objective.",
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"infopt {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="INFOPT_DEBUG", help="Show the traceback of an error."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say which kernels are chosen, and the like.")
    ] = False,
) -> None:
    """Set up what every command shares."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
    logging.getLogger("infopt").setLevel(logging.INFO if verbose else logging.WARNING)


app.command("generate")(generate)
app.command("compare")(compare)
app.command("eval")(evaluate)
app.command("explain")(explain)
app.command("doctor")(doctor)
app.command("quantize")(quantize)
app.command("recommend")(recommend)
app.command("serve")(serve)
app.command("train-draft")(train_draft)
app.command("train-tiny")(train_tiny)
app.add_typer(bench_app, name="bench")
app.add_typer(models_app, name="models")
