"""How much memory each weight format takes, and what of it a step reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.experiments.findings.quantization import (
    BITS,
    CANDIDATE,
    SCHEMES,
    QuantizationStory,
    weight_bytes,
)
from infopt.plotting import bars_with_interval
from infopt.plotting.data import floats
from infopt.select.rows import rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_WORTH_SAYING = 0.05


def memory_axes(story: QuantizationStory) -> Axes:
    """Draw the memory of the weights, as measured."""
    rows = story.rows(SCHEMES)
    column, reference = "memory.weights_bytes", story.reference()
    smallest = min(rows_of(rows), key=lambda row: row[column])
    share = smallest[column] / story.reference_row(SCHEMES)[column]
    title = (
        f"{smallest[CANDIDATE]} is the smallest: {smallest[column] / 2**20:.0f} MiB, {share:.0%} "
        f"of {story.unrounded}"
    )
    return bars_with_interval(rows, column, label=CANDIDATE, reference=reference, title=title)


def memory_table(story: QuantizationStory) -> pd.DataFrame:
    """Return bits per weight, what lies in memory, and what a decode step reads of it."""
    import pandas as pd

    rows = story.rows(SCHEMES)
    held = floats(rows, "memory.weights_bytes") / 2**20
    base = story.reference_row(SCHEMES)
    curves = [story.curve(SCHEMES, str(name), "decode_") for name in rows[CANDIDATE]]
    read = [weight_bytes(curve) / 2**20 for curve in curves]
    table = {
        "bits per weight": floats(rows, BITS).round(2),
        "weights in memory (MiB)": held.round(1),
        "of the reference (%)": (100 * held * 2**20 / base["memory.weights_bytes"]).round(1),
        "read by a decode step (MiB)": np.round(read, 1),
        "path": list(rows["extra.quantization_path"]),
    }
    return pd.DataFrame(table, index=pd.Index(rows[CANDIDATE], name="scheme"))


def memory_sentence(story: QuantizationStory) -> str:
    """Say what the smallest format saves, and what it does not touch."""
    rows = rows_of(story.rows(SCHEMES))
    smallest = min(rows, key=lambda row: row["memory.weights_bytes"])
    base = story.reference_row(SCHEMES)
    share = smallest["memory.weights_bytes"] / base["memory.weights_bytes"]
    read = weight_bytes(story.curve(SCHEMES, str(smallest[CANDIDATE]), "decode_"))
    text = (
        f"`{smallest[CANDIDATE]}` is the smallest: {smallest['memory.weights_bytes'] / 2**20:.0f} "
        f"MiB of weights, {share:.0%} of `{story.unrounded}`, at {smallest[BITS]:.3g} bits per "
        "weight."
    )
    rest = 1 - read / smallest["memory.weights_bytes"]
    if rest > _WORTH_SAYING:
        text += (
            f" A step reads {read / 2**20:.0f} MiB of that; the other {rest:.0%} is mostly the "
            "embedding table, of which a step looks up a row per token."
        )
    return text


def check(story: QuantizationStory) -> None:
    """Assert what the section on memory claims.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    base = story.reference_row(SCHEMES)
    for row in rows_of(story.rows(SCHEMES)):
        if row["extra.quantization_path"] == "packed":
            smaller = row["memory.weights_bytes"] < base["memory.weights_bytes"]
            assert smaller, f"{row[CANDIDATE]} is packed, so it takes less memory"
