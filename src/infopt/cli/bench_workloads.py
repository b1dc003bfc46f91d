"""Workloads as the command line describes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from infopt.cli.values import parse_pairs

SloOption = Annotated[
    str, typer.Option(help="Objective: a preset, or limits as in ttft_s=0.5,tpot_s=0.05.")
]

WORKLOAD_DEFAULTS: dict[str, dict[str, Any]] = {
    "synthetic": {"prompt_tokens": 128, "output_tokens": 64},
    "shared-prefix": {
        "num_groups": 2,
        "prefix_tokens": 512,
        "suffix_tokens": 32,
        "output_tokens": 32,
    },
}
"""Options that a workload kind has no default for, chosen to take seconds on a laptop."""


def workload_spec(
    kind: str, num_requests: int | None, options: list[str], trace: Path | None = None
) -> dict[str, Any]:
    """Return ``{"kind": name, **options}``.

    Args:
        kind: Generator.
        num_requests: How many requests (None: as the kind says).
        options: ``KEY=VALUE`` texts; they win over the defaults.
        trace: File of the ``trace`` workload.

    Raises:
        ConfigError: A text without ``=``, or a key given twice.
    """
    defaults = WORKLOAD_DEFAULTS.get(kind, {}) | ({"path": str(trace)} if trace else {})
    count = {} if num_requests is None else {"num_requests": num_requests}
    return {"kind": kind, **count, **defaults, **parse_pairs(options, "set")}
