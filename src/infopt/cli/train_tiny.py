"""``infopt train-tiny``: train a model of the tiny family from this Python's own text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from infopt.cli.console import note, output

if TYPE_CHECKING:
    from infopt.training import TrainedModel


def train_tiny(
    name: Annotated[str, typer.Argument(help="tiny-dense, tiny-draft or tiny-moe.")],
    *,
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint.")],
    steps: Annotated[
        int | None, typer.Option(help="Updates of the weights.", show_default="as the recipe says")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
) -> None:
    """Train a small model on CPython's documentation and library; an interrupted run goes on."""
    from infopt.training import recipe_of
    from infopt.training import train_tiny as train

    trained = train(recipe_of(name), out, seed=seed, num_steps=steps)
    output().print(_table(name, trained))
    note(f"wrote {trained.folder}")


def _table(name: str, trained: TrainedModel) -> Table:
    from infopt.training import LEARNED_SHARE

    verdict = "learned" if trained.is_learned else "not learned"
    table = Table(
        title=f"{name}: {verdict} (at most {LEARNED_SHARE:.0%} of the bigram's perplexity)",
        title_justify="left",
        box=None,
    )
    for column in ("held-out text", "tokens", "perplexity", "smoothed bigram", "share"):
        table.add_column(column, justify="left" if column == "held-out text" else "right")
    for kind, value in trained.validation.items():
        numbers = (f"{value.perplexity:.2f}", f"{value.bigram_perplexity:.2f}")
        table.add_row(kind, f"{value.num_tokens:,}", *numbers, f"{value.share:.1%}")
    return table
