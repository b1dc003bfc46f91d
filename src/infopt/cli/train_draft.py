"""``infopt train-draft``: train a head that guesses for a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from infopt.cli.console import JsonOption, note, output, print_json
from infopt.cli.models import RegistryOption, load_registry

if TYPE_CHECKING:
    from infopt.training.head import TrainedHead


def train_draft(
    model: Annotated[str, typer.Argument(help="Registered model, checkpoint folder or GGUF file.")],
    *,
    out: Annotated[Path, typer.Option(help="Folder for the head; one that is there is replaced.")],
    minutes: Annotated[
        float, typer.Option(help="Time for writing texts and learning from them, at most 20.")
    ] = 10.0,
    tokens: Annotated[int, typer.Option(help="Tokens of text at most.")] = 200_000,
    draft_tokens: Annotated[
        int, typer.Option(help="Tokens the head can guess: the most frequent ones.")
    ] = 8192,
    steps: Annotated[
        int | None, typer.Option(help="Updates of the weights.", show_default="as time allows")
    ] = None,
    quantization: Annotated[
        str, typer.Option(help="Weight scheme of the model while it writes.")
    ] = "none",
    seed: Annotated[int, typer.Option(help="Seed of prompts, samples and batches.")] = 0,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a draft head on texts that the model writes itself.

    Use it with speculative={"method": "draft_head", "model": FOLDER}.
    """
    from infopt.config import EngineConfig
    from infopt.training.head import HeadRecipe, train_head

    load_registry(registry)
    recipe = HeadRecipe(
        minutes=minutes,
        num_tokens=tokens,
        num_draft_tokens=draft_tokens,
        max_steps=steps,
        seed=seed,
    )
    config = EngineConfig(
        model,
        quantization=quantization,
        max_num_seqs=64,
        max_num_batched_tokens=1024,
    )
    trained = train_head(config, out, recipe)
    if as_json:
        print_json(trained.record)
        return
    output().print(_table(trained))
    note(f"wrote {escape(str(trained.folder))}")


def _table(trained: TrainedHead) -> Table:
    record = trained.record
    best = record["best"]
    table = Table(
        title=f"{record['num_tokens']:,} tokens, {record['num_steps']} steps: "
        f"{best['tokens_per_pass']:.2f} tokens per pass on held-out texts (greedy)",
        title_justify="left",
        box=None,
    )
    for column in ("guess", "agrees with the model"):
        table.add_column(column, justify="right")
    for place, share in enumerate(best["agreement"], start=1):
        table.add_row(str(place), f"{share:.1%}")
    return table
