"""From which context on keys and values cost time, and what compressing them does to speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from infopt.cache.memory_model import dominance_length
from infopt.experiments.findings.kv_cache import COMPRESSION, CONTEXT, KVStory
from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.story import CANDIDATE
from infopt.experiments.findings.tables import forest_axes, shown_ratio
from infopt.plotting import kv_share
from infopt.plotting.data import floats
from infopt.select.rows import Row, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_HALF = 0.5


def shares(story: KVStory) -> pd.DataFrame:
    """Return measured and predicted shares of KV in a decode step, by candidate and context.

    Measured is the time beyond that of the shortest context, against the whole step; its ends come
    from opposite ends of the two medians' intervals. Predicted is the share of KV in the bytes.
    """
    import pandas as pd

    tables = []
    for name in story.rows(CONTEXT)[CANDIDATE] if CONTEXT in story.slices else ():
        curve = story.curve(CONTEXT, str(name), "context.")
        if len(curve) > 1:
            tables.append(_shares_of(str(name), curve))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def share_axes(story: KVStory) -> Axes | Remark:
    """Draw both shares over the context."""
    table = shares(story)
    if table.empty:
        return not_measured("Time over the context")
    name = str(story.reference_row(CONTEXT)[CANDIDATE])
    return kv_share(table, title=_finding(story, table), reference=name)


def step_table(story: KVStory) -> pd.DataFrame | Remark:
    """Return the measured time of a decode step by context and candidate, and the ratios."""
    import pandas as pd

    if CONTEXT not in story.slices:
        return not_measured("Time over the context")
    base = str(story.reference_row(CONTEXT)[CANDIDATE])
    curves = {
        str(name): story.curve(CONTEXT, str(name), "context.").set_index("num_cached")
        for name in story.rows(CONTEXT)[CANDIDATE]
    }
    columns: dict[str, Any] = {}
    for name, curve in curves.items():
        columns[f"{name} (ms)"] = (1e3 * curve["measured_s"]).round(2)
    for name, curve in curves.items():
        if name != base:
            ratio = curves[base]["measured_s"] / curve["measured_s"]
            columns[f"{name}, speed"] = [f"{value:.2f}x" for value in ratio]
    table = pd.DataFrame(columns)
    table.index = pd.Index([int(tokens) for tokens in table.index], name="context (tokens)")
    return table


def share_sentence(story: KVStory) -> str:
    """Say from where on keys and values are half of a step: predicted and measured."""
    table = shares(story)
    if table.empty:
        return ""
    name = str(story.reference_row(CONTEXT)[CANDIDATE])
    curve = story.curve(CONTEXT, name, "context.")
    last = curve.iloc[-1]
    token_bytes = last["kv_bytes"] / (last["num_cached"] * last["num_seqs"])
    length = dominance_length(int(last["num_seqs"]), token_bytes, last["weight_bytes"])
    seen = _crossing(table.loc[table["name"] == name])
    measured = (
        f"in the measured time from about {seen:.0f} tokens on"
        if seen is not None
        else f"in the measured time not up to {last['num_cached']:.0f} tokens"
    )
    return (
        f"With {last['num_seqs']:.0f} sequences in a step, keys and values are half of the bytes "
        f"from **{length:.0f} tokens** each on, and half of the step {measured}. Below that, "
        "making them smaller can save memory but hardly any time."
    )


def speed_axes(story: KVStory, metric: str = "output_tokens_per_s") -> Axes | Remark:
    """Draw the paired ratios of the load runs."""
    rows = story.rows(COMPRESSION)
    if f"comparison.{metric}.median" not in rows.columns:
        return not_measured("A comparison of speed")
    return forest_axes(rows, metric)


def speed_sentence(story: KVStory) -> str:
    """Say what compression did to throughput and to the first token."""
    rows = [row for row in rows_of(story.rows(COMPRESSION)) if row[CANDIDATE] != story.reference]
    if not rows:
        return ""
    parts = [
        f"{label}: {_decided(rows, f'comparison.{metric}')}"
        for label, metric in (("throughput", "output_tokens_per_s"), ("first token", "ttft_s"))
    ]
    return f"Against `{story.reference}`, {'; '.join(parts)}."


def _decided(rows: list[Row], base: str) -> str:
    """Name the candidates that differ beyond doubt, by verdict, and count the others."""
    parts = []
    for verdict in ("better", "worse"):
        own = [row for row in rows if row.get(f"{base}.verdict") == verdict]
        names = ", ".join(f"`{row[CANDIDATE]}` {shown_ratio(row, base)}" for row in own)
        parts += [f"{verdict} with {names}"] if own else []
    num_open = sum(row.get(f"{base}.verdict") == "undecided" for row in rows)
    parts += [f"{num_open} undecided"] if num_open else []
    return ", ".join(parts) or "not compared"


def check(story: KVStory) -> None:
    """Assert what the sections on time claim.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    table = shares(story)
    if table.empty:
        return
    for name in dict.fromkeys(table["name"]):
        predicted = floats(table.loc[table["name"] == name], "predicted")
        assert np.all(np.diff(predicted) > 0), f"{name}: more context, a larger share of the bytes"


def _shares_of(name: str, curve: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    first = curve.iloc[0]
    rest = curve.iloc[1:]
    kv, weights = floats(rest, "kv_bytes"), floats(rest, "weight_bytes")
    return pd.DataFrame(
        {
            "name": name,
            "context": floats(rest, "num_cached"),
            "measured": 1 - first["measured_s"] / floats(rest, "measured_s"),
            "low": 1 - first["high_s"] / floats(rest, "low_s"),
            "high": 1 - first["low_s"] / floats(rest, "high_s"),
            "predicted": kv / (kv + weights),
        }
    )


def _crossing(own: pd.DataFrame) -> float | None:
    """Return the context at which the measured share passes a half, between two points."""
    x, y = floats(own, "context"), floats(own, "measured")
    above = np.flatnonzero(y >= _HALF)
    if not len(above):
        return None
    at = int(above[0])
    if at == 0:
        return float(x[0])
    return float(np.interp(_HALF, y[at - 1 : at + 1], x[at - 1 : at + 1]))


def _finding(story: KVStory, table: pd.DataFrame) -> str:
    name = str(story.reference_row(CONTEXT)[CANDIDATE])
    last = table.loc[table["name"] == name].iloc[-1]
    return (
        f"{name}: at {last['context']:.0f} tokens keys and values take {last['measured']:.0%} of "
        f"the time and {last['predicted']:.0%} of the bytes of a step"
    )
