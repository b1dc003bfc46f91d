"""What the calibration text decides: its amount, its kind, and whether inputs are calibrated."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.quantization import (
    CALIBRATION,
    CANDIDATE,
    KL,
    SCHEMES,
    QuantizationStory,
)
from infopt.experiments.findings.tables import compare_table, shown_ratio
from infopt.plotting import calibration_size, text_ratios
from infopt.plotting.calibration import KINDS
from infopt.plotting.data import floats
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TOKENS, SECONDS = "extra.calibration_tokens", "extra.calibration_s"
_SIZE = re.compile(r"gptq-\d+-sequences?")
_DOMAINS = ("docs", "code", "random")
_UNCALIBRATED = "rtn"


def size_axes(story: QuantizationStory) -> Axes | Remark:
    """Draw the perplexity of GPTQ over the amount of its calibration text."""
    rows = _rows(story, [name for name in _names(story) if _SIZE.fullmatch(name)])
    if rows is None or len(rows) < 2:
        return not_measured("The amount of calibration text")
    base = _row(story, _UNCALIBRATED)
    baselines = {kind: ratio for kind in KINDS if (ratio := number(base, _ratio(kind)))}
    return calibration_size(rows, baselines=baselines)


def domain_axes(story: QuantizationStory) -> Axes | Remark:
    """Draw the perplexity on docs and on code by the kind of calibration text."""
    rows = _rows(story, [_UNCALIBRATED, *(f"gptq-{domain}" for domain in _DOMAINS)])
    if rows is None or len(rows) < 2:
        return not_measured("The kind of calibration text")
    limit = story.floor.max_perplexity_ratio
    return text_ratios(rows, label=CANDIDATE, limit=limit)


def static_axes(story: QuantizationStory) -> Axes | Remark:
    """Draw the perplexity of inputs that are scaled at run time, and by calibration."""
    names = [name for name in _names(story) if name.startswith("static-")]
    rows = _rows(story, ["dynamic", *names])
    if rows is None or len(rows) < 2:
        return not_measured("The comparison of static with dynamic scales")
    limit = story.floor.max_perplexity_ratio
    return text_ratios(rows, label=CANDIDATE, limit=limit)


def table(story: QuantizationStory) -> pd.DataFrame | Remark:
    """Return quality and cost of all calibrations."""
    if CALIBRATION not in story.slices:
        return not_measured(f"The slice `{CALIBRATION}`")
    columns = [KL, _ratio("docs"), _ratio("code"), TOKENS, SECONDS]
    shown = compare_table(story.rows(CALIBRATION), columns)
    return shown.rename(columns={"calibration tokens": "tokens", "Calibration (s)": "seconds"})


def size_sentence(story: QuantizationStory) -> str:
    """Say what more calibration text bought, and from where on it bought little."""
    rows = _rows(story, [name for name in _names(story) if _SIZE.fullmatch(name)])
    if rows is None or len(rows) < 2:
        return ""
    ordered = sorted(rows_of(rows), key=lambda row: row[TOKENS])
    first, last, base = ordered[0], ordered[-1], _row(story, _UNCALIBRATED)
    return (
        f"With {first[TOKENS]:.0f} tokens the KL is {first[KL]:.3g} nats, with "
        f"{last[TOKENS]:.0f} it is {last[KL]:.3g}; plain rounding loses {base[KL]:.3g}. "
        f"{_enough(ordered)} The time went from {first[SECONDS]:.1f} to {last[SECONDS]:.1f} s."
    )


def _enough(ordered: list[Row]) -> str:
    """Return the smallest calibration within a tenth of the best."""
    best = min(row[KL] for row in ordered)
    enough = next(row for row in ordered if row[KL] <= 1.1 * best)
    return f"{enough[TOKENS]:.0f} tokens come within a tenth of the best of them."


def domain_sentence(story: QuantizationStory) -> str:
    """Say whether calibration text has to resemble what is served."""
    rows = {name: row for name in _DOMAINS if (row := _row(story, f"gptq-{name}"))}
    if not {"docs", "code"} <= set(rows):
        return ""
    parts = []
    for kind in KINDS:
        own, other = rows[kind], rows[next(k for k in KINDS if k != kind)]
        parts.append(
            f"on {kind} calibration on {kind} gives {_shown(own, kind)} and on other text "
            f"{_shown(other, kind)} ({_verdict(own, other, kind)})"
        )
    text = f"Perplexity over the float model's: {'; '.join(parts)}."
    if "random" in rows:
        random = ", ".join(f"{_shown(rows['random'], kind)} on {kind}" for kind in KINDS)
        text += f" Random tokens, which resemble nothing: {random}."
    return text


def _verdict(own: Row, other: Row, kind: str) -> str:
    """Return whether the same kind of text is better beyond both intervals."""
    base = f"quality.perplexity_ratio.{kind}"
    if own[f"{base}.high"] < other[f"{base}.low"]:
        return "better"
    return "worse" if own[f"{base}.low"] > other[f"{base}.high"] else "undecided"


def static_sentence(story: QuantizationStory) -> str:
    """Compare static with dynamic scales of inputs, on every model that ran both."""
    lines = []
    for name in story.slices:
        rows = {str(row[CANDIDATE]): row for row in rows_of(story.rows(name))}
        dynamic = rows.get("w8a8-dynamic") or rows.get("dynamic")
        static = rows.get("w8a8-static") or rows.get("static-docs")
        if dynamic is None or static is None or name == CALIBRATION:
            continue
        model = str(static["config.model"]).rpartition("/")[2]
        lines.append(
            f"- `{model}`: scales at run time cost {dynamic[KL]:.3g} nats, calibrated ones "
            f"{static[KL]:.3g}, **{static[KL] / dynamic[KL]:.2g}x** as much, for the same weights "
            f"in {static['extra.weight_bits']:.3g} bits.{_speed(dynamic, static)}"
        )
    return "\n".join(lines)


def _speed(dynamic: Row, static: Row) -> str:
    base = "comparison.output_tokens_per_s"
    if static["extra.slice"] != SCHEMES or number(static, f"{base}.median") is None:
        return ""  # where a slice explains quality, a single pair says nothing about speed
    return (
        f" Throughput over the reference: {shown_ratio(dynamic, base)} and "
        f"{shown_ratio(static, base)}."
    )


def cost_sentence(story: QuantizationStory) -> str:
    """Say what calibrating the schemes of the default slice cost, once."""
    rows = rows_of(story.rows(SCHEMES))
    spent = [row for row in rows if (number(row, TOKENS) or 0) > 0]
    if not spent:
        return "No scheme of this run was calibrated."
    parts = [
        f"`{row[CANDIDATE]}` {row[SECONDS]:.0f} s for {row[TOKENS]:.0f} tokens"
        for row in sorted(spent, key=lambda row: row[SECONDS])
    ]
    return (
        f"Calibrating once cost {', '.join(parts)}; the result is kept, so a later start reads it."
    )


def check(story: QuantizationStory) -> None:
    """Assert what the section on calibration claims.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    if CALIBRATION not in story.slices:
        return
    rows = story.rows(CALIBRATION)
    uncalibrated = rows.loc[[n in (_UNCALIBRATED, "dynamic") for n in rows[CANDIDATE]]]
    assert not floats(uncalibrated, TOKENS).any(), "what needs no text ran none"
    sizes = _rows(story, [name for name in _names(story) if _SIZE.fullmatch(name)])
    if sizes is not None:
        assert (floats(sizes, TOKENS) > 0).all(), "calibration ran text"


def _names(story: QuantizationStory) -> list[str]:
    if CALIBRATION not in story.slices:
        return []
    return [str(name) for name in story.rows(CALIBRATION)[CANDIDATE]]


def _rows(story: QuantizationStory, wanted: list[str]) -> pd.DataFrame | None:
    """Return the wanted candidates that this run has, or None."""
    if not set(wanted) & set(_names(story)):
        return None
    rows = story.rows(CALIBRATION)
    return rows.loc[[str(name) in wanted for name in rows[CANDIDATE]]].reset_index(drop=True)


def _row(story: QuantizationStory, candidate: str) -> Row:
    """Return a candidate, or an empty row."""
    rows = _rows(story, [candidate])
    return {} if rows is None else rows_of(rows)[0]


def _ratio(kind: str) -> str:
    return f"quality.perplexity_ratio.{kind}.ratio"


def _shown(row: Row, kind: str) -> str:
    return shown_ratio(row, f"quality.perplexity_ratio.{kind}")
