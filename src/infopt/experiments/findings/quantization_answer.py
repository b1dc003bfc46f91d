"""The answer of the quantization notebook: which precision, at what price, for which gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infopt.experiments.findings import quantization_speed as speed
from infopt.experiments.findings.quantization import (
    BITS,
    CANDIDATE,
    KL,
    SCHEMES,
    QuantizationStory,
)
from infopt.experiments.findings.tables import full_text, shown_ratio
from infopt.plotting.data import floats, is_missing
from infopt.results.html import format_ratio, format_value
from infopt.select import FLOORS, Recommendation, get_objective
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

_KINDS = ("docs", "code")


def answer(story: QuantizationStory) -> str:
    """Return the conclusion as Markdown."""
    row = story.scheme(story.chosen)
    lines = [_choice(story, row)]
    if story.chosen != story.reference():
        lines += [f"**Its price:** {_price(row)}", f"**Its gain:** {_gain(story, row)}"]
        lines.append(f"**Where the gain ends:** {_end(story)}")
    lines += [_fastest(story), _lossy(story)]
    text = "\n".join(f"- {line}" for line in lines)
    if story.data.is_miniature:
        text += "\n\nThese are first impressions of a miniature; `make run` measures properly."
    return text


def _choice(story: QuantizationStory, row: Row) -> str:
    entry = story.data.chosen[SCHEMES]
    certainty = {
        "chosen": "the best that keeps the quality floor",
        "undecided": "what was measured cannot tell it from others that keep the floor",
        "unproven": "no interval tells it from others that keep the floor",
        "none_feasible": "no candidate keeps the floor, so the reference stays",
    }[str(entry["status"])]
    kept = sum(bool(value) for value in story.marked["feasible"])
    bits = f", {row[BITS]:.3g} bits per weight" if number(row, BITS) is not None else ""
    return (
        f"Use **`{story.chosen}`**{bits}: {certainty} ({kept} of {len(story.marked)} do: KL at "
        f"most {story.floor.max_kl:g} nats, perplexity at most "
        f"{story.floor.max_perplexity_ratio:g}x, no task below the reference's interval)."
    )


def _price(row: Row) -> str:
    ends = [number(row, f"quality.fidelity_details.kl_{end}") for end in ("low", "high")]
    interval = "" if None in ends else f" [{_short(ends[0])}, {_short(ends[1])}]"
    ratios = [
        f"{shown_ratio(row, f'quality.perplexity_ratio.{kind}')} on {kind}" for kind in _KINDS
    ]
    return (
        f"{_short(number(row, KL))}{interval} nats from the float model; perplexity "
        f"{' and '.join(ratios)}."
    )


def _gain(story: QuantizationStory, row: Row) -> str:
    parts = []
    gain = speed.gain_of(story, str(row[CANDIDATE]))
    if gain is not None:
        first = gain.measured.to_dict("records")[0]
        parts.append(
            f"a decode step of {first['num_tokens']:.0f} is "
            f"{format_ratio(first['measured'], first['low'], first['high'])} as fast"
        )
    if not is_missing(row.get(f"{speed.THROUGHPUT}.median")):
        verdict = row[f"{speed.THROUGHPUT}.verdict"]
        parts.append(
            f"under load the throughput is {shown_ratio(row, speed.THROUGHPUT)} ({verdict})"
        )
    share = row["memory.weights_bytes"] / story.reference_row(SCHEMES)["memory.weights_bytes"]
    parts.append(f"its weights take {share:.0%} of the memory")
    return f"against `{story.unrounded}`, {', '.join(parts)}."


def _end(story: QuantizationStory) -> str:
    gain = speed.gain_of(story, story.chosen)
    if gain is None:
        return "single steps were not timed in this run."
    smallest, largest = (float(f(floats(gain.measured, "num_tokens"))) for f in (min, max))
    measured, predicted, ends = gain.fades_at("measured"), gain.fades_at("predicted"), gain.ends_at
    seen = f"not up to {largest:.0f} sequences, the most that were measured"
    if ends == smallest:
        seen = f"a step of {smallest:.0f} is not faster beyond doubt to begin with"
    elif ends is not None:
        seen = f"from {ends:.0f} sequences on it is no longer faster beyond doubt"
    elif measured is not None:
        seen = f"half of it is gone at {measured:.0f} sequences"
    expected = f"at {predicted:.0f}" if predicted else f"beyond {max(speed.SIZES)}"
    regime = gain.measured.to_dict("records")[-1]["regime"]
    return (
        f"{seen}; bytes and FLOPs alone would halve it {expected}. At {largest:.0f} sequences its "
        f"step is limited by {regime}."
    )


def _fastest(story: QuantizationStory) -> str:
    """Name the scheme with the highest throughput, whatever it loses."""
    base = f"{speed.THROUGHPUT}.median"
    rows = [row for row in rows_of(story.marked) if number(row, base) is not None]
    if not rows:
        return "No throughput was compared."
    best = max(rows, key=lambda row: row[base])
    ratio = shown_ratio(best, speed.THROUGHPUT)
    if best[CANDIDATE] == story.chosen:
        return f"No other scheme was faster under load ({ratio})."
    why = str(best["reasons"]) or "it keeps the floor, but is not better beyond doubt"
    return f"The fastest under load was `{best[CANDIDATE]}`, {ratio}. Why not that: {why}."


def _lossy(story: QuantizationStory) -> str:
    """Say what the lossy floor would allow."""
    lossy = FLOORS.get("lossy")
    limits = f"KL {lossy.max_kl:g}, perplexity {lossy.max_perplexity_ratio:g}x"
    if story.floor == lossy:
        return f"This is the lossy floor already ({limits})."
    found = story.choice(lossy)
    name = _candidate(story, found.run)
    if name is None:
        return f"A lossy floor ({limits}) would allow nothing more."
    if name == story.chosen:
        return f"A lossy floor ({limits}) would change nothing."
    row = story.scheme(name)
    return (
        f"A lossy floor ({limits}) would allow `{name}`: {row[BITS]:.3g} bits, KL "
        f"{_short(number(row, KL))} nats, throughput {shown_ratio(row, speed.THROUGHPUT)} against "
        f"`{story.unrounded}`."
    )


def schemes_table(story: QuantizationStory) -> Styler:
    """Return all schemes with their price, their gain, and why each was not chosen."""
    import pandas as pd

    why = why_not(story, story.choice(story.floor))
    # The selection compares the reference with itself; here it stands with what it loses.
    losses = {row[CANDIDATE]: number(row, KL) for row in rows_of(story.rows(SCHEMES))}
    rows = [
        {
            "scheme": row[CANDIDATE],
            "bits": _short(number(row, BITS)),
            "KL (nats)": _short(losses[row[CANDIDATE]]),
            "perplexity (x)": _short(number(row, "quality.perplexity_ratio"), digits=4),
            "throughput": _throughput(row),
            "memory (MiB)": f"{row['memory.weights_bytes'] / 2**20:.0f}",
            "why not": why[str(row[CANDIDATE])],
        }
        for row in rows_of(story.marked)
    ]
    return full_text(pd.DataFrame(rows).set_index("scheme"))


def _throughput(row: Row) -> str:
    if is_missing(row.get(f"{speed.THROUGHPUT}.median")):
        return "reference"
    verdict = row[f"{speed.THROUGHPUT}.verdict"]
    return f"{shown_ratio(row, speed.THROUGHPUT)} {verdict}"


def why_not(story: QuantizationStory, found: Recommendation) -> dict[str, str]:
    """Return why each candidate was not chosen, by name, in the words of `infopt.select`."""
    reasons = {entry.run: "; ".join(entry.reasons) for entry in found.rejected}
    reasons |= {tie.run: tie.reason for tie in found.ties}
    chosen = story.chosen
    names = {str(row["run"]): str(row[CANDIDATE]) for row in rows_of(story.marked)}
    return {
        name: "chosen"
        if name == chosen
        else reasons.get(run, "keeps the floor, but misses a limit of the pipeline's objective")
        for run, name in names.items()
    }


def _candidate(story: QuantizationStory, run: str | None) -> str | None:
    names = {str(row["run"]): str(row[CANDIDATE]) for row in rows_of(story.marked)}
    return names.get(run) if run else None


def check(story: QuantizationStory) -> None:
    """Assert what the answer claims.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    assert set(story.data.table["status"]) == {"ok"}, "every run reached its end"
    chosen = story.scheme(story.chosen)
    is_reference = story.chosen == story.reference()
    assert is_reference or chosen["feasible"], "what was chosen keeps the quality floor"
    paired = get_objective(str(chosen["workload.criterion"])).paired
    verdict = chosen.get(f"comparison.{paired}.verdict")
    assert verdict != "worse", "what was chosen is not worse beyond doubt"


def _short(value: float | None, digits: int = 3) -> str:
    return "" if value is None else format_value(float(value), digits)
