"""Plots, tables and the answer of the notebook on speculation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.speculative import (
    AUTO,
    FLOAT_TARGET,
    HEAD,
    METHODS,
    OFF,
    SPECULATION,
    TINY_PAIR,
    SpeculativeStory,
    auto_sentence,
    ratio_text,
    sequences,
)
from infopt.experiments.findings.tables import shown_ratio
from infopt.plotting import (
    acceptance_by_position,
    batch_gain,
    cell_gains,
    decision_shares,
    formula_scatter,
)
from infopt.plotting.data import floats
from infopt.select.rows import number, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from pandas.io.formats.style import Styler

_FEW = 10
"""Positions with fewer guesses are not drawn: their shares say nothing."""
GAIN = "Decode rate, ratio to no speculation"


def traffic_axes(story: SpeculativeStory, candidate: str = AUTO) -> Axes | Remark:
    """Return every cell of a candidate with its interval."""
    cells = story.of(candidate)
    if cells.empty:
        return not_measured(f"`{candidate}`")
    return cell_gains(cells, name=candidate)


def gain_axes(story: SpeculativeStory, workload: str) -> Axes | Remark:
    """Return gain over batch of every method on a workload at temperature 0, with the formula's."""
    cells = story.cells
    wanted = (cells["workload"] == workload) & (cells["temperature"] == 0)
    own = cells.loc[wanted & (cells["slice"] == METHODS)]
    if own.empty:
        return not_measured(f"`{workload}` at temperature 0")
    if len(set(own["batch"])) < 2:
        only = f"{own['batch'].iloc[0]:.0f} at once"
        return Remark(f"*`{workload}` was measured with {only}, so nothing can fade.*")
    gains = own.rename(columns={"batch": "num_tokens", "ratio": "measured"})
    return batch_gain(
        gains,
        label="candidate",
        reference="off",
        title=_gain_title(own, workload),
        across="Sequences at once",
        measure=GAIN,
        predicted_label="formula",
    )


def _gain_title(own: pd.DataFrame, workload: str) -> str:
    first = own.loc[own["batch"] == own["batch"].min()]
    best = first.iloc[int(np.argmax(floats(first, "ratio")))]
    line = own.loc[own["candidate"] == best["candidate"]].sort_values(by=["batch"])
    ends = [f"{c['ratio']:.2f}x at {c['batch']:.0f}" for c in (line.iloc[0], line.iloc[-1])]
    return f"{workload}: {best['candidate']} {', '.join(dict.fromkeys(ends))}"


def position_axes(story: SpeculativeStory, candidate: str) -> Axes | Remark:
    """Return acceptance by position of one method, a line per kind of traffic."""
    table = story.positions
    own = table.loc[(table["candidate"] == candidate) & (table["slice"] == METHODS)]
    own = own.loc[(own["batch"] == own["batch"].min()) & (own["proposed"] >= _FEW)]
    return acceptance_by_position(own, name=candidate) if len(own) else not_measured(candidate)


def decision_axes(story: SpeculativeStory) -> Axes | Remark:
    """Return what ``auto`` decided, cell by cell."""
    cells = story.of(AUTO)
    return decision_shares(cells) if len(cells) else not_measured("`auto`")


def formula_axes(story: SpeculativeStory) -> Axes:
    """Return measured gains over the formula's."""
    return formula_scatter(story.cells)


def cells_table(story: SpeculativeStory) -> Styler:
    """Return all cells with what the formula was given."""
    import pandas as pd

    rows = [
        {
            "slice": c["slice"],
            "method": c["candidate"],
            "traffic": c["traffic"],
            "at once": f"{c['batch']:.0f}",
            "gain": ratio_text(c),
            "by formula": f"{c['predicted']:.2f}x",
            "if verifying were free": f"{c['formula']:.2f}x",
            "kept (alpha)": "-" if np.isnan(c["alpha"]) else f"{c['alpha']:.0%}",
            "tokens per pass": f"{c['tokens_per_pass']:.2f}",
            "verify": f"{c['verify_cost']:.2f} steps",
            "draft": f"{c['draft_cost']:.3f} steps",
        }
        for c in rows_of(story.cells)
    ]
    return pd.DataFrame(rows).style.hide(axis="index")


def looping_sentence(story: SpeculativeStory) -> str:
    """Return how many answers looped, and what they would have made of the gain."""
    shares = [
        number(row, "extra.looping_share")
        for name in story.slices
        for row in rows_of(story.data.rows(name))
    ]
    known = [share for share in shares if share is not None]
    text = f"{max(known, default=0.0):.0%} of the answers looped and were set apart."
    looping = story.looping
    if len(looping):
        best = looping.iloc[int(np.argmax(floats(looping, "ratio")))]
        text += (
            f" On those, `{best['candidate']}` reached {best['ratio']:.2f}x with "
            f"{best['alpha']:.0%} of its guesses kept: a gain that no reader of the answers wants."
        )
    return text


def float_sentence(story: SpeculativeStory) -> str:
    """Return the gain on unquantized weights beside that on the chosen ones."""
    cells = story.cells
    own = cells.loc[(cells["slice"] == FLOAT_TARGET) & (cells["candidate"] == AUTO)]
    if own.empty:
        return "Unquantized weights are not part of this run."
    parts = []
    for cell in rows_of(own):
        same = story.of(AUTO)
        same = same.loc[(same["traffic"] == cell["traffic"]) & (same["batch"] == cell["batch"])]
        if len(same):
            other = ratio_text(rows_of(same)[0])
            parts.append(
                f"{cell['traffic']} at {cell['batch']:.0f}: {ratio_text(cell)} with unquantized "
                f"weights, {other} with the chosen ones"
            )
    return "; ".join(parts) + "." if parts else "No cell was measured with both kinds of weights."


def head_sentence(story: SpeculativeStory) -> str:
    """Return what a draft head gains on the pipeline's model, cell by cell."""
    cells = story.cells
    own = cells.loc[(cells["slice"] == FLOAT_TARGET) & (cells["candidate"] == HEAD)]
    if own.empty:
        return "A draft head is not part of this run."
    return _lines(own)


def pair_sentence(story: SpeculativeStory) -> str:
    """Return what drafters with a model gain on the tiny pair, by method."""
    cells = story.cells
    own = cells.loc[cells["slice"] == TINY_PAIR]
    if own.empty:
        return "Drafters with a model are not part of this run."
    return _lines(own)


def _lines(cells: pd.DataFrame) -> str:
    lines = [
        f"- `{c['candidate']}`, {c['traffic']}, {c['batch']:.0f} at once: {ratio_text(c)}, "
        f"{c['tokens_per_pass']:.2f} tokens per pass; a proposal takes "
        f"{c['draft_cost']:.2f} steps, verifying {c['verify_cost']:.2f}"
        for c in rows_of(cells)
    ]
    return "\n".join(lines)


def answer(story: SpeculativeStory) -> str:
    """Return the conclusion as Markdown."""
    lines = [_choice(story), _where(story), auto_sentence(story)]
    text = "\n".join(f"- {line}" for line in lines)
    if story.data.is_miniature:
        text += "\n\nThese are first impressions of a miniature; `make run` measures properly."
    return text


def _choice(story: SpeculativeStory) -> str:
    chosen = str(story.chosen["chosen"])
    if chosen == OFF:
        return f"For this pipeline's own traffic: **leave it off**. {story.chosen['reason']}"
    row = story.row(chosen)
    return (
        f"For this pipeline's own traffic: **`{chosen}`**, throughput "
        f"{shown_ratio(row, 'comparison.output_tokens_per_s')} against "
        f"off. {story.chosen['reason']}"
    )


def _where(story: SpeculativeStory) -> str:
    """Return the traffic that some method gains on for certain, and that none does."""
    cells = story.cells.loc[story.cells["slice"] == METHODS]
    won, open_ = [], []
    for traffic in dict.fromkeys(cells["traffic"]):
        own = cells.loc[cells["traffic"] == traffic]
        gains = own.loc[own["verdict"] == "better"]
        if len(gains):
            most = gains.iloc[int(np.argmax(floats(gains, "ratio")))]
            at = sequences(float(most["batch"]))
            won.append(f"{traffic} ({most['ratio']:.2f}x with `{most['candidate']}` at {at})")
        else:
            open_.append(str(traffic))
    parts = [f"**turn it on** for {', '.join(won)}"] if won else []
    parts += [f"expect nothing for certain from {', '.join(open_)}"] if open_ else []
    return "By kind of traffic: " + "; ".join(parts) + "."


def check(story: SpeculativeStory) -> None:
    """Assert what the notebook says.

    Raises:
        AssertionError: The run contradicts it.
    """
    cells = story.cells
    assert (floats(cells, "low") <= floats(cells, "ratio")).all()
    assert (floats(cells, "ratio") <= floats(cells, "high")).all()
    tokens, length = floats(cells, "tokens_per_pass"), floats(cells, "mean_length")
    assert (tokens >= 1).all()
    assert (tokens <= 1 + np.nan_to_num(length)).all()
    rates = floats(story.positions, "rate")
    assert ((rates >= 0) & (rates <= 1)).all()
    assert story.chosen["chosen"] in set(story.data.rows(SPECULATION)["extra.candidate"])
