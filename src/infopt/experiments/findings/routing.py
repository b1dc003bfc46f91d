"""Findings on routing: who is right on which prompts, what policies recover, and at what cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.moe import MoeStory
from infopt.plotting import routing_curves, routing_lifts
from infopt.plotting.data import floats
from infopt.results.metrics import Metric
from infopt.select.rows import Row, number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

ROUTING, CHEAP = "routing", "cheap"
RANDOM = "random"
TARGET = "0.8"
"""Share of the gap whose price is told, as it is written in names of figures."""

_SHARE = Metric("share", "Prompts that the strong model answers", "%", display_scale=100.0)
_SECONDS = Metric("seconds", "Time per prompt", "ms", better="lower", display_scale=1000.0)
_MISSING = "Routing"


def is_measured(story: MoeStory) -> bool:
    """Tell whether this run has routed."""
    return ROUTING in story.slices


def routing_row(story: MoeStory) -> Row:
    """Return the row of the cheap model, which holds all figures."""
    return story.data.row(ROUTING, CHEAP)


def policies(story: MoeStory) -> list[str]:
    """Return the policies in the order in which they were trained."""
    ends = "_verdict"
    found = [
        str(name).removeprefix("extra.routing_").removesuffix(ends)
        for name in story.rows(ROUTING).columns
        if str(name).startswith("extra.routing_") and str(name).endswith(ends)
    ]
    return [name for name in found if _figure(story, name, "lift") is not None]


def curve_table(story: MoeStory) -> pd.DataFrame:
    """Return the curves of all policies below each other."""
    import pandas as pd

    parts = [
        story.curve(ROUTING, CHEAP, f"routing.{name}.").assign(policy=name)
        for name in policies(story)
    ]
    return pd.concat(parts, ignore_index=True)


def lift_table(story: MoeStory) -> pd.DataFrame:
    """Return lift, its interval and the verdict of all policies but the random one."""
    import pandas as pd

    row = routing_row(story)
    rows = []
    for name in policies(story):
        lift, low, high = (_figure(story, name, f"lift{end}") for end in ("", "_low", "_high"))
        verdict = str(row[f"extra.routing_{name}_verdict"])
        ends = {"low": lift if low is None else low, "high": lift if high is None else high}
        rows.append({"policy": name, "lift": lift, **ends, "verdict": verdict})
    table = pd.DataFrame(rows)
    return table.loc[table["policy"] != RANDOM].reset_index(drop=True)


def pair_table(story: MoeStory) -> pd.DataFrame | Remark:
    """Return the A/B of both models on identical prompts, as a table for display."""
    if not is_measured(story):
        return not_measured(_MISSING)
    import pandas as pd

    row = routing_row(story)
    start, ends = "extra.ab_", "_num_items"
    groups = [
        str(name).removeprefix(start).removesuffix(ends)
        for name in row
        if str(name).startswith(start) and str(name).endswith(ends)
    ]
    rows = {name: _pair(row, f"{start}{name}_") for name in groups}
    return pd.DataFrame(rows).T.rename_axis("prompts")


def _pair(row: Row, base: str) -> dict[str, str]:
    def of(name: str) -> float:
        return number(row, base + name) or 0.0

    ratio = number(row, f"{base}seconds_median")
    low, high = 100 * of("low"), 100 * of("high")
    return {
        "number": f"{of('num_items'):.0f}",
        "cheap right": f"{of('cheap'):.0%}",
        "strong right": f"{of('strong'):.0%}",
        "difference (points)": f"{100 * of('difference'):+.0f} [{low:+.0f}, {high:+.0f}]",
        "only cheap / only strong right": f"{of('num_gained'):.0f} / {of('num_lost'):.0f}",
        "p (McNemar)": f"{of('p_value'):.2g}",
        "time, cheap / strong": "-" if ratio is None else f"{ratio:.3f}x",
    }


def curve_axes(story: MoeStory) -> Axes | Remark:
    """Return quality over the strong model's share, by policy."""
    if not is_measured(story):
        return not_measured(_MISSING)
    return routing_curves(curve_table(story), x=_SHARE, title=_gap_sentence(story))


def cost_axes(story: MoeStory) -> Axes | Remark:
    """Return quality over the time per prompt, by policy."""
    if not is_measured(story):
        return not_measured(_MISSING)
    return routing_curves(curve_table(story), x=_SECONDS, title=recovery_sentence(story, "")[0])


def lift_axes(story: MoeStory) -> Axes | Remark:
    """Return what policies gain over a random one."""
    if not is_measured(story):
        return not_measured(_MISSING)
    return routing_lifts(lift_table(story), title=verdict_sentence(story, ""))


def _gap_sentence(story: MoeStory) -> str:
    table = curve_table(story)
    quality = floats(table, "quality")
    share = floats(table, "share")
    weak, strong = float(quality[share == 0].mean()), float(quality[share == 1].mean())
    top = table.sort_values(by=["quality", "share"], ascending=[False, True]).iloc[0]
    return (
        f"Cheap alone is right on {weak:.0%}, strong alone on {strong:.0%}; the best point is "
        f"{top['policy']} with {top['quality']:.0%} at a share of {top['share']:.0%}"
    )


def verdict_sentence(story: MoeStory, quote: str = "`") -> str:
    """Say which policies beat a random one on prompts that they have not seen.

    Args:
        story: The results.
        quote: Put around names.
    """
    if not is_measured(story):
        return "Routing is not part of this run."
    table = lift_table(story)
    better = table.loc[table["verdict"] == "better"].sort_values(by=["lift"], ascending=False)
    if better.empty:
        return "No policy beats a random one of the same share beyond doubt"
    shown = [
        f"{quote}{name}{quote} ({100 * lift:+.1f} points)"
        for name, lift in zip(better["policy"], better["lift"], strict=True)
    ]
    return f"Better than a random policy of the same share: {', '.join(shown)}"


def recovery_sentence(story: MoeStory, quote: str = "`") -> tuple[str, str | None]:
    """Say which policy recovers most of the gap for the least time, and name it.

    Args:
        story: The results.
        quote: Put around its name.

    Returns:
        The sentence and the policy; None where the strong model is no better.
    """
    prices = _prices(story)
    if not prices:
        return "The strong model is no better on these prompts: there is no gap to recover", None
    name = min(prices, key=lambda policy: prices[policy][1])
    share, seconds = prices[name]
    table = curve_table(story)
    alone = table.loc[(table["policy"] == RANDOM) & (table["share"] == 1.0), "seconds"]
    text = (
        f"{float(TARGET):.0%} of the gap cost least with {quote}{name}{quote}: a share of "
        f"{share:.0%} and {1000 * seconds:.0f} ms per prompt"
    )
    if len(alone):
        text += f" ({seconds / float(alone.iloc[0]):.2f}x of strong alone)"
    if str(routing_row(story)[f"extra.routing_{name}_verdict"]) != "better":
        text += ", which may be chance"
    return text, name


def _prices(story: MoeStory) -> dict[str, tuple[float, float]]:
    """Return by policy the smallest share that recovers the target, and the seconds there."""
    found = {}
    table = curve_table(story)
    for name in policies(story):
        share = _figure(story, name, f"cpt_{TARGET}")
        own = table.loc[table["policy"] == name]
        if share is not None:
            seconds = np.interp(share, floats(own, "share"), floats(own, "seconds"))
            found[name] = (share, float(seconds))
    return found


def _figure(story: MoeStory, policy: str, name: str) -> float | None:
    return number(routing_row(story), f"extra.routing_{policy}_{name}")


def routing_lines(story: MoeStory) -> list[str]:
    """Return what the answer of the notebook says about routing."""
    if not is_measured(story):
        return []
    recovery, name = recovery_sentence(story)
    lines = [f"**Which request goes where:** {verdict_sentence(story)}. {recovery}."]
    if name == RANDOM:
        lines.append("Nothing is cheaper than chance here: asking every prompt costs more.")
    return lines


def check_routing(story: MoeStory) -> None:
    """Assert what holds for every curve.

    Raises:
        AssertionError: The run contradicts it.
    """
    if not is_measured(story):
        return
    table = curve_table(story)
    for name in policies(story):
        own = table.loc[table["policy"] == name]
        first, last = own.iloc[0], own.iloc[-1]
        alone = table.loc[table["policy"] == policies(story)[0]]
        # All policies meet where one model answers everything.
        assert np.isclose(first["quality"], alone.iloc[0]["quality"])
        assert np.isclose(last["quality"], alone.iloc[-1]["quality"])
