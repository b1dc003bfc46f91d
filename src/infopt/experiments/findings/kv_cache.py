"""Findings of the KV-cache notebook: what is kept, what fits, and the choice.

Quality, time and sharing have modules of their own beside this one. The floor and the choice are
those of `infopt.select`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.story import CANDIDATE, StageStory, story_parts
from infopt.plotting import bars_with_interval, capacity_bars
from infopt.plotting.data import floats
from infopt.results.html import format_interval
from infopt.select import filter_runs
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

STAGE = "kv_cache"
COMPRESSION, CAPACITY, CONTEXT = "compression", "capacity", "context"
SHARING = ("prefix_turns", "prefix_system", "prefix_sessions")
KEPT = "extra.kv_bytes_kept_per_token"
NUM_SEQS, PREDICTED = "extra.capacity_num_seqs", "extra.capacity_predicted_seqs"

_TOLERANCE = 0.03
"""Relative difference between prediction and count that the memory model is allowed, or one
sequence: a count is a whole number."""


@dataclass(frozen=True)
class KVStory(StageStory):
    """The stage's results."""

    @property
    def reference(self) -> str:
        """Name of the uncompressed candidate."""
        return str(self.reference_row(COMPRESSION)[CANDIDATE])

    @property
    def chosen(self) -> str:
        """The pipeline's choice."""
        return str(self.data.chosen[COMPRESSION]["chosen"])

    @cached_property
    def marked(self) -> pd.DataFrame:
        """The candidates with what each misses of the floor (see ``infopt.select.filter_runs``)."""
        reference = str(self.reference_row(COMPRESSION)["run"])
        return filter_runs(self.rows(COMPRESSION), None, self.floor, reference=reference)

    def candidate(self, name: str) -> Row:
        """Return a candidate's row, marked."""
        return {str(row[CANDIDATE]): row for row in rows_of(self.marked)}[name]

    def kept_share(self, row: Row) -> float:
        """Return the KV bytes that a candidate keeps, as a share of the uncompressed ones."""
        return float(row[KEPT] / self.reference_row(COMPRESSION)[KEPT])


def kv_story(results_dir: str | Path, model: str | None = None) -> KVStory:
    """Return the results of the pipeline if there are any, else of a miniature.

    Args:
        results_dir: The pipeline's folder.
        model: What the miniature runs; None for the default model.
    """
    return KVStory(*story_parts(STAGE, results_dir, model))


def kept_axes(story: KVStory) -> Axes:
    """Draw the bytes that a token of a prompt leaves behind, by candidate."""
    rows = story.rows(COMPRESSION)
    smallest = min(rows_of(rows), key=lambda row: row[KEPT])
    title = (
        f"{smallest[CANDIDATE]} keeps the fewest bytes: {story.kept_share(smallest):.0%} of "
        f"{story.reference}"
    )
    return bars_with_interval(rows, KEPT, label=CANDIDATE, reference=story.reference, title=title)


def kept_table(story: KVStory) -> pd.DataFrame:
    """Return form, eviction, rows and bytes of the candidates."""
    import pandas as pd

    rows = rows_of(story.rows(COMPRESSION))
    table = {
        "stored as": [row["extra.kv_cache_dtype"] for row in rows],
        "eviction": [row["extra.kv_eviction"] for row in rows],
        "rows kept (%)": [round(100 * row["extra.kv_rows_share"], 1) for row in rows],
        "KiB per token": [round(row[KEPT] / 1024, 2) for row in rows],
        "of the uncompressed (%)": [round(100 * story.kept_share(row), 1) for row in rows],
        "returned to the pool (MiB)": [_freed(row) for row in rows],
    }
    return pd.DataFrame(table, index=pd.Index([row[CANDIDATE] for row in rows], name="candidate"))


def kept_sentence(story: KVStory) -> str:
    """Say at which length the bytes were counted, and why short prompts keep more."""
    row = story.reference_row(COMPRESSION)
    return (
        f"Counted for a prompt of {row['extra.kv_context']:.0f} tokens. The newest rows are never "
        "quantized and pages are handed out whole, so shorter prompts keep a larger share and "
        "longer ones a smaller."
    )


def capacity_axes(story: KVStory) -> Axes | Remark:
    """Draw how many sequences a fixed pool held at once, and what the memory model had said."""
    if CAPACITY not in story.slices:
        return not_measured("Counting sequences")
    base = str(story.reference_row(CAPACITY)[CANDIDATE])
    return capacity_bars(story.rows(CAPACITY), title=_capacity_finding(story), reference=base)


def capacity_table(story: KVStory) -> pd.DataFrame | Remark:
    """Return counts, predictions, and the throughput with a full pool."""
    import pandas as pd

    if CAPACITY not in story.slices:
        return not_measured("Counting sequences")
    table = story.rows(CAPACITY)
    counts, predicted = floats(table, NUM_SEQS), floats(table, PREDICTED)
    base = float(story.reference_row(CAPACITY)[NUM_SEQS])
    columns = {
        "sequences": counts.astype(int),
        "predicted": predicted.astype(int),
        "difference (%)": (100 * (predicted / counts - 1)).round(1),
        "of the uncompressed": [f"{count / base:.2f}x" for count in counts],
        "tokens/s with a full pool": [_rate(row) for row in rows_of(table)],
        "KiB per token": (floats(table, "extra.capacity_bytes_per_token") / 1024).round(2),
    }
    return pd.DataFrame(columns, index=pd.Index(table[CANDIDATE], name="candidate"))


def capacity_sentence(story: KVStory) -> str:
    """Say what compression does to the number of users, and how good the prediction was."""
    if CAPACITY not in story.slices:
        return ""
    rows = rows_of(story.rows(CAPACITY))
    base = story.reference_row(CAPACITY)
    best = max(rows, key=lambda row: row[NUM_SEQS])
    off = max(abs(row[PREDICTED] - row[NUM_SEQS]) for row in rows)
    pool = base["memory.kv_pool_bytes"] / 2**20
    more = (
        f"**{best[NUM_SEQS]:.0f}** with `{best[CANDIDATE]}` "
        f"({best[NUM_SEQS] / base[NUM_SEQS]:.1f}x)"
        if best[NUM_SEQS] > base[NUM_SEQS]
        else "no more with any compression"
    )
    return (
        f"A pool of {pool:.0f} MiB held **{base[NUM_SEQS]:.0f}** prompts of "
        f"{base['extra.capacity_context']:.0f} tokens as they are, and {more}. The memory model "
        f"was off by {off:.0f} sequence{'s' if off != 1 else ''} at most."
    )


def check(story: KVStory) -> None:
    """Assert what the sections on memory claim.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    for row in rows_of(story.rows(COMPRESSION)):
        if row[CANDIDATE] != story.reference:
            assert story.kept_share(row) <= 1, f"{row[CANDIDATE]} keeps no more than all"
    for row in rows_of(story.rows(CAPACITY)) if CAPACITY in story.slices else ():
        off = abs(row[PREDICTED] - row[NUM_SEQS])
        allowed = max(_TOLERANCE * row[NUM_SEQS], 1)
        assert off <= allowed, f"{row[CANDIDATE]}: the memory model is off by {off:.0f} sequences"


def _capacity_finding(story: KVStory) -> str:
    rows = rows_of(story.rows(CAPACITY))
    base = story.reference_row(CAPACITY)
    best = max(rows, key=lambda row: row[NUM_SEQS])
    if best[NUM_SEQS] == base[NUM_SEQS]:
        return f"Nothing holds more sequences than {base[CANDIDATE]} in this pool"
    return (
        f"{best[CANDIDATE]} holds {best[NUM_SEQS] / base[NUM_SEQS]:.1f}x the sequences of "
        f"{base[CANDIDATE]} in the same pool"
    )


def _rate(row: Row) -> str:
    rate = number(row, "extra.capacity_tokens_per_s")
    if rate is None:
        return "no step with all of them alone"
    return format_interval(rate, *(row[f"extra.capacity_{end}"] for end in ("low", "high")))


def _freed(row: Row) -> str:
    freed = number(row, "memory.freed_bytes")
    return "" if freed is None else f"{freed / 2**20:.1f}"
