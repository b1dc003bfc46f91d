"""Step time against what the machine allows: the plot of the roofline notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from infopt.plotting import colors_for, styled
from infopt.plotting.axes import label_axis, legend_beside, new_axes, set_title
from infopt.plotting.data import floats
from infopt.plotting.style import markers_for
from infopt.results.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_STEP_TIME = Metric("step_s", "Time of a step", "ms", "lower", 1e3)


@styled
def step_time_axes(curves: Mapping[str, pd.DataFrame], what: str, title: str) -> Axes:
    """Draw measured step times with 95 % intervals, and dashed the least time the machine allows.

    Args:
        curves: By name, tables with ``num_tokens``, ``measured_s``, ``low_s``, ``high_s`` and
            ``predicted_s`` (see ``StageResults.curve``).
        what: Label of the horizontal axis.
        title: The finding.
    """
    ax = new_axes(None)
    colors, markers = colors_for(curves), markers_for(curves)
    for name, curve in curves.items():
        x, y = floats(curve, "num_tokens"), floats(curve, "measured_s") * 1e3
        low, high = floats(curve, "low_s") * 1e3, floats(curve, "high_s") * 1e3
        errors = np.clip(np.stack([y - low, high - y]), 0, None)
        style = {"color": colors[name], "capsize": 3, "elinewidth": 1.2, "zorder": 3}
        ax.errorbar(x, y, yerr=errors, marker=markers[name], label=f"{name}, measured", **style)
        bound = floats(curve, "predicted_s") * 1e3
        ax.plot(x, bound, color=colors[name], linestyle="--", label=f"{name}, least possible")
    ticks = sorted({float(v) for curve in curves.values() for v in floats(curve, "num_tokens")})
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_xlabel(what)
    label_axis(ax, "y", _STEP_TIME)
    legend_beside(ax)
    set_title(ax, title)
    return ax


def step_points(curve: pd.DataFrame, unit: str) -> pd.DataFrame:
    """Return a curve as rows for ``plotting.roofline``.

    Args:
        curve: From ``StageResults.curve``.
        unit: Name of what a size counts (``decode of``), used in the labels; its first word is the
            kind of the steps.
    """
    import pandas as pd

    return pd.DataFrame(
        {
            "slug": [f"{unit} {int(n)}" for n in curve["num_tokens"]],
            "kind": unit.partition(" ")[0],
            "tokens": [str(int(n)) for n in curve["num_tokens"]],
            "roofline.bytes": curve["bytes"],
            "roofline.flops": curve["flops"],
            "roofline.measured_s": curve["measured_s"],
        }
    )


def utilisation(curve: pd.DataFrame, bandwidth: float, flops: float) -> pd.DataFrame:
    """Return time, bound, MBU and MFU of each size as a table to display.

    Args:
        curve: From ``StageResults.curve``.
        bandwidth: Bytes per second of the machine.
        flops: FLOP/s of the machine.
    """
    import pandas as pd

    measured = floats(curve, "measured_s")
    moved, work = floats(curve, "bytes"), floats(curve, "flops")
    return pd.DataFrame(
        {
            "tokens in the step": floats(curve, "num_tokens").astype(int),
            "measured (ms)": measured * 1e3,
            "least possible (ms)": floats(curve, "predicted_s") * 1e3,
            "FLOP per byte": (work / moved).round(1),
            "MBU (%)": (moved / (measured * bandwidth) * 100).round(1),
            "MFU (%)": (work / (measured * flops) * 100).round(1),
            "in the model (%)": (floats(curve, "forward_s") / measured * 100).round(1),
        }
    ).round(2)
