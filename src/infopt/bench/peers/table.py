"""The comparison as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

PHASES = ("decode", "prefill")


def show(report: dict[str, Any], console: Console | None = None) -> None:
    """Print rates by engine, then infopt against the best peer of each column."""
    console = console or Console(width=160)
    batches = list(report["batches"])
    table = Table(title="tokens/s, median [95 % interval]")
    for title in ("engine", "weights", "activations", "KL to float (nats)"):
        table.add_column(title)
    columns = [("decode", b) for b in batches] + [("prefill", batches[-1])]
    for phase, batch in columns:
        table.add_column(f"{phase}, {batch}", justify="right")
    for name, formats in report["formats"].items():
        quality = report["divergence"][name]
        table.add_row(
            name,
            formats["weights"],
            formats["activations"],
            f"{quality['mean_kl_nats']:.4f}" if quality else "not given",
            *(_rate(report["batches"][b][name][phase]) for phase, b in columns),
        )
    console.print(table)
    for phase, batch in columns:
        for line in best_ratios(report["batches"][batch], phase):
            console.print(f"{phase}, {batch} sequences: {line}")
    for note in report["left_out"]:
        console.print(note)


def best_ratios(rows: dict[str, Any], phase: str) -> Iterable[str]:
    """Yield one line per format of ours: its ratio to the fastest peer."""
    for name, row in rows.items():
        against = row[phase]["against"]
        if not against:
            continue
        peer = max(against, key=lambda p: rows[p][phase]["tokens_per_s"])
        ratio = against[peer]
        yield (
            f"{name} / {peer} (the fastest peer) = {ratio['median']:.2f} "
            f"[{ratio['low']:.2f}, {ratio['high']:.2f}] {ratio['verdict']}"
        )


def _rate(cell: dict[str, Any]) -> str:
    return f"{cell['tokens_per_s']:.0f} [{cell['low']:.0f}, {cell['high']:.0f}]"
