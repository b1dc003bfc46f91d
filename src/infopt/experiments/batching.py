"""Stage `batching`: how requests share steps and memory.

Every slice is one question (static or continuous, how many sequences, how many tokens a step, which
page size, prefix cache on or off); the configuration holds the questions, `run_slice` answers them.
None of these options changes what is computed, so quality is not measured again here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infopt.experiments.slice_spec import SliceSpec
from infopt.experiments.slices import run_slice


def run(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Run what is missing of the slice and return its manifest."""
    return run_slice(spec, results_dir, num_threads=num_threads)
