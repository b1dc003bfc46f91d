"""Which parts of the model are sensitive, and where each calibrated scheme leaves its error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.quantization import (
    BITS,
    CANDIDATE,
    IS_LOOSE,
    IS_STORED,
    KL,
    SCHEMES,
    QuantizationStory,
)
from infopt.plotting import layer_errors, sensitivity_bars
from infopt.plotting.data import floats
from infopt.quantization.layer_inputs import LINEARS
from infopt.results.html import format_value
from infopt.select.rows import number, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_MILLION = 1e6
_SAME_BITS = 0.1
"""Bits per weight within which two schemes count as equally large."""


def sensitivities(story: QuantizationStory) -> pd.DataFrame:
    """Return the parts of the model: ``layer`` (NaN outside them), ``part``, ``num_weights``, KL.

    The first scheme that measured them tells; they are a property of the model. Empty where none
    did.
    """
    import pandas as pd

    for name in story.rows(SCHEMES)[CANDIDATE]:
        found = story.curve(SCHEMES, str(name), "sensitivity.")
        if not found.empty:
            layer = floats(found, "layer")
            kinds = [layer == -2, layer == -1, floats(found, "is_attention") > 0]
            part = np.select(kinds, ["embedding", "head", "attention"], "mlp")
            return found.assign(layer=np.where(layer < 0, np.nan, layer), part=part)
    return pd.DataFrame(columns=pd.Index(["layer", "part", "num_weights", "kl"]))


def sensitivity_axes(story: QuantizationStory) -> Axes | Remark:
    """Draw the sensitivity of the parts."""
    parts = sensitivities(story)
    return (
        not_measured("Sensitivity (a `mixed` scheme)") if parts.empty else sensitivity_bars(parts)
    )


def sensitivity_table(story: QuantizationStory, count: int = 8) -> pd.DataFrame | Remark:
    """Return the most sensitive parts, and what a million of their weights contribute."""
    parts = sensitivities(story)
    if parts.empty:
        return not_measured("Sensitivity (a `mixed` scheme)")
    kl, weights = floats(parts, "kl"), floats(parts, "num_weights")
    table = parts.assign(
        **{
            "layer": ["" if np.isnan(v) else f"{v:.0f}" for v in floats(parts, "layer")],
            "weights (millions)": (weights / _MILLION).round(2),
            "KL (nats)": [format_value(v, 3) for v in kl],
            "share of all (%)": (100 * kl / kl.sum()).round(1),
            "KL per million weights": [format_value(v, 3) for v in kl / weights * _MILLION],
        }
    )
    columns = ["layer", "part", "weights (millions)", "KL (nats)", "share of all (%)"]
    ordered = table.iloc[np.argsort(-kl)][[*columns, "KL per million weights"]]
    return ordered.head(count).reset_index(drop=True)


def sensitivity_sentence(story: QuantizationStory) -> str:
    """Say how unevenly the loss is spread: what a mixed scheme lives from."""
    parts = sensitivities(story)
    if parts.empty:
        return ""
    kl, weights = floats(parts, "kl"), floats(parts, "num_weights")
    order = np.argsort(-kl / weights)
    half = int(np.searchsorted(np.cumsum(kl[order]), kl.sum() / 2)) + 1
    held = weights[order][:half].sum() / weights.sum()
    by_part = {
        name: kl[(parts["part"] == name).to_numpy()].sum() / kl.sum()
        for name in ("attention", "mlp", "embedding", "head")
    }
    shares = ", ".join(f"{name} {share:.0%}" for name, share in by_part.items() if share)
    return (
        f"Half of the KL comes from {held:.0%} of the weights ({half} of {len(parts)} parts). By "
        f"kind: {shares}. The more uneven, the more a scheme gains that spends its bits there."
    )


def mixed_sentence(story: QuantizationStory) -> str:
    """Compare each mixed scheme with the best of those that use no more bits."""
    rows = [row for row in rows_of(story.rows(SCHEMES)) if number(row, KL) is not None]
    lines = []
    for mixed in (row for row in rows if str(row[CANDIDATE]).startswith("mixed-")):
        others = [
            row
            for row in rows
            if row[BITS] <= mixed[BITS] + _SAME_BITS
            and row is not mixed
            and not row[IS_STORED]
            and not row[IS_LOOSE]
        ]
        if others:
            best = min(others, key=lambda row: row[KL])
            word = "more" if mixed[KL] > best[KL] else "less"
            lines.append(
                f"- `{mixed[CANDIDATE]}` ({mixed['extra.quantization_formats']}) uses "
                f"{mixed[BITS]:.3g} bits and loses {_short(mixed[KL])} nats, **{word}** than "
                f"`{best[CANDIDATE]}` with {best[BITS]:.3g} bits ({_short(best[KL])})."
            )
    return "\n".join(lines)


def error_table(story: QuantizationStory) -> pd.DataFrame:
    """Return the relative output error by scheme, block and product; empty where none is known.

    Columns: ``scheme``, ``block``, ``linear``, ``relative_error``.
    """
    import pandas as pd

    parts = []
    for row in rows_of(story.rows(SCHEMES)):
        if number(row, "extra.fewest_expert_tokens") is not None:
            continue  # its products are experts: more, and others, than those of a dense layer
        name = row[CANDIDATE]
        errors = story.curve(SCHEMES, str(name), "layers.")
        # Products of the blocks in the order of the model; the head, the last entry, is left out.
        count = len(errors) - len(errors) % len(LINEARS)
        if count:
            index = np.arange(count)
            parts.append(
                pd.DataFrame(
                    {
                        "scheme": str(name),
                        "block": index // len(LINEARS),
                        "linear": [LINEARS[i % len(LINEARS)] for i in index],
                        "relative_error": floats(errors, "relative_error")[:count],
                    }
                )
            )
    columns = pd.Index(["scheme", "block", "linear", "relative_error"])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def error_axes(story: QuantizationStory) -> Axes | Remark:
    """Draw the errors of the calibrated schemes layer by layer."""
    table = error_table(story)
    return not_measured("The error of single layers") if table.empty else layer_errors(table)


def error_sentence(story: QuantizationStory) -> str:
    """Name the product that each calibrated scheme does worst."""
    table = error_table(story)
    lines = []
    for name in dict.fromkeys(table["scheme"]):
        own = table.loc[table["scheme"] == name]
        worst = own.iloc[int(np.argmax(floats(own, "relative_error")))]
        means = {
            kind: float(floats(own.loc[own["linear"] == kind], "relative_error").mean())
            for kind in LINEARS
        }
        hardest = max(means, key=lambda kind: means[kind])
        lines.append(
            f"- `{name}`: {_percent(floats(own, 'relative_error').mean())} on average, "
            f"{_percent(worst['relative_error'])} in `{worst['linear']}` of layer "
            f"{worst['block']}; of the kinds of product `{hardest}` is the hardest "
            f"({_percent(means[hardest])})."
        )
    return "\n".join(lines)


def _short(value: float) -> str:
    return format_value(float(value), 2)


def _percent(share: float) -> str:
    return f"{format_value(100 * float(share), 2)} %"
