"""The answer of the KV-cache notebook: how much context, how many users, at what price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infopt.experiments.findings import kv_quality as quality
from infopt.experiments.findings import kv_sharing as sharing
from infopt.experiments.findings import kv_time as time
from infopt.experiments.findings.kv_cache import (
    CAPACITY,
    COMPRESSION,
    NUM_SEQS,
    KVStory,
    capacity_sentence,
)
from infopt.experiments.findings.story import CANDIDATE
from infopt.experiments.findings.tables import full_text, shown_ratio
from infopt.plotting.data import is_missing
from infopt.select import choose
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

_CERTAINTY = {
    "chosen": "the best that keeps the quality floor",
    "undecided": "what was measured cannot tell it from others that keep the floor",
    "unproven": "no interval tells it from others that keep the floor",
    "none_feasible": "no candidate keeps the floor, so the reference stays",
}


def answer(story: KVStory) -> str:
    """Return the conclusion as Markdown."""
    lines = [
        _choice(story),
        f"**How many fit:** {capacity_sentence(story) or 'not counted in this run.'}",
        f"**What is lost:** {_smallest(story)} {quality.presses_sentence(story)}",
        f"**When it matters:** {time.share_sentence(story) or 'not timed in this run.'}",
        f"**Sharing:** {sharing.sharing_sentence(story) or 'not measured in this run.'}",
    ]
    text = "\n".join(f"- {line}" for line in lines)
    if story.data.is_miniature:
        text += "\n\nThese are first impressions of a miniature; `make run` measures properly."
    return text


def combinations_table(story: KVStory) -> Styler:
    """Return all candidates: bytes, quality, speed, sequences, and why each was not chosen."""
    import pandas as pd

    why = _why_not(story)
    # The selection compares the reference with itself; here it stands with what it loses.
    losses = {row[CANDIDATE]: row for row in rows_of(story.rows(COMPRESSION))}
    seqs = _sequences(story)
    rows = [
        {
            "candidate": row[CANDIDATE],
            "stored as": row["extra.kv_cache_dtype"],
            "eviction": row["extra.kv_eviction"],
            "bytes kept": f"{story.kept_share(row):.0%}",
            "KL (nats)": _short(losses[row[CANDIDATE]], quality.KL),
            "hidden numbers": _percent(row, f"{quality.PASSKEY}.score"),
            "throughput": _speed(row),
            "sequences": seqs.get(str(row[CANDIDATE]), ""),
            "why not": why[str(row[CANDIDATE])],
        }
        for row in rows_of(story.marked)
    ]
    return full_text(pd.DataFrame(rows).set_index("candidate"))


def check(story: KVStory) -> None:
    """Assert what the answer claims.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    assert set(story.data.table["status"]) == {"ok"}, "every run reached its end"
    chosen = story.candidate(story.chosen)
    assert story.chosen == story.reference or chosen["feasible"], "what was chosen keeps the floor"


def _choice(story: KVStory) -> str:
    entry = story.data.chosen[COMPRESSION]
    kept = sum(bool(value) for value in story.marked["feasible"])
    if kept <= 1 and story.chosen == story.reference:
        return (
            f"Use **`{story.chosen}`**: keys and values stay as they are. None of the "
            f"{len(story.marked) - 1} ways to compress them keeps the quality floor."
        )
    text = (
        f"Use **`{story.chosen}`**: {_CERTAINTY[str(entry['status'])]} ({kept} of "
        f"{len(story.marked)} do)."
    )
    if story.chosen == story.reference:
        return f"{text} Keys and values stay as they are."
    row = story.candidate(story.chosen)
    return f"{text} It keeps {story.kept_share(row):.0%} of the bytes, at {_speed(row)}."


def _smallest(story: KVStory) -> str:
    """Name the candidate with the fewest bytes above the floor, whatever its speed."""
    kept = [row for row in rows_of(story.marked) if row["feasible"]]
    least = min(kept, key=story.kept_share, default=None)
    if least is None or least[CANDIDATE] == story.reference:
        return "no compression keeps the quality floor."
    return (
        f"the fewest bytes above the quality floor: `{least[CANDIDATE]}` with "
        f"{story.kept_share(least):.0%}, KL {_short(least, quality.KL)} nats."
    )


def _why_not(story: KVStory) -> dict[str, str]:
    """Return why each candidate was not chosen, in the words of `infopt.select`."""
    criterion = str(story.reference_row(COMPRESSION)["workload.criterion"])
    reference = str(story.reference_row(COMPRESSION)["run"])
    found = choose(
        story.rows(COMPRESSION), None, story.floor, objective=criterion, reference=reference
    )
    reasons = {entry.run: "; ".join(entry.reasons) for entry in found.rejected}
    reasons |= {tie.run: tie.reason for tie in found.ties}
    return {
        str(row[CANDIDATE]): "chosen"
        if row[CANDIDATE] == story.chosen
        else reasons.get(str(row["run"]), "keeps the floor, and is not better beyond doubt")
        for row in rows_of(story.marked)
    }


def _sequences(story: KVStory) -> dict[str, str]:
    if CAPACITY not in story.slices:
        return {}
    return {str(r[CANDIDATE]): f"{r[NUM_SEQS]:.0f}" for r in rows_of(story.rows(CAPACITY))}


def _speed(row: Row) -> str:
    if is_missing(row.get("comparison.output_tokens_per_s.median")):
        return "reference"
    base = "comparison.output_tokens_per_s"
    return f"{shown_ratio(row, base)} {row[f'{base}.verdict']}"


def _short(row: Row, column: str) -> str:
    value = number(row, column)
    return "" if value is None else f"{value:.3g}"


def _percent(row: Row, column: str) -> str:
    value = number(row, column)
    return "" if value is None else f"{value:.0%}"
