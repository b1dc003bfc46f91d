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
        table.add_row(
            name,
            formats["weights"],
            formats["activations"],
            _divergence(report["divergence"][name]),
            *(_rate(report["batches"][b][name][phase]) for phase, b in columns),
        )
    console.print(table)
    for phase, batch in columns:
        for line in best_ratios(report["batches"][batch], phase):
            console.print(f"{phase}, {batch} sequences: {line}")
    for note in report["left_out"]:
        console.print(note)


def to_markdown(report: dict[str, Any]) -> str:
    """Return the same as tables for a document: rates, then ratios to the fastest peers."""
    batches = list(report["batches"])
    columns = [("decode", b) for b in batches] + [("prefill", batches[-1])]
    head = ["engine", "weights", "activations", "KL", *(f"{p}, {b}" for p, b in columns)]
    rows = [
        [
            name,
            formats["weights"],
            formats["activations"],
            _divergence(report["divergence"][name]),
            *(_rate(report["batches"][b][name][phase]) for phase, b in columns),
        ]
        for name, formats in report["formats"].items()
    ]
    ratios = [
        [f"{phase}, {batch}", line]
        for phase, batch in columns
        for line in best_ratios(report["batches"][batch], phase)
    ]
    return _table(head, rows) + "\n" + _table(["", "ratio [95 % interval]"], ratios)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def best_ratios(rows: dict[str, Any], phase: str) -> Iterable[str]:
    """Yield one line per format of ours: its ratio to the fastest peer, and to its own kind."""
    for name, row in rows.items():
        against = row[phase]["against"]
        if not against:
            continue
        for kind, peers in (("peer", list(against)), ("bf16 peer", _bf16(against))):
            if not peers or (kind == "bf16 peer" and "bf16" not in name):
                continue
            peer = max(peers, key=lambda p: rows[p][phase]["tokens_per_s"])
            ratio = against[peer]
            yield (
                f"{name} / {peer} (the fastest {kind}) = {ratio['median']:.2f} "
                f"[{ratio['low']:.2f}, {ratio['high']:.2f}] {ratio['verdict']}"
            )


def _bf16(names: Iterable[str]) -> list[str]:
    return [name for name in names if "bf16" in name.lower()]


def _rate(cell: dict[str, Any]) -> str:
    return f"{cell['tokens_per_s']:.0f} [{cell['low']:.0f}, {cell['high']:.0f}]"


def _divergence(quality: dict[str, float] | None) -> str:
    return f"{quality['mean_kl_nats']:.4f}" if quality else "not given"
