"""The notebook on power and cost: joules and money of a request, own machine or another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from infopt.energy.break_even import BreakEven, OwnOrElsewhere, surface
from infopt.energy.cost import tokens_per_kwh
from infopt.energy.prices import NO_PRICE
from infopt.experiments.costs import cost_section
from infopt.experiments.findings.missing import Remark, not_measured
from infopt.experiments.findings.power import REPLICAS, THREADS, PowerStory, joules_text
from infopt.plotting import cost_curves, lengths_map
from infopt.results.html import format_value
from infopt.select.rows import Row, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INPUTS, OUTPUTS = (64, 256, 1024, 4096), (16, 64, 256, 1024)
"""Lengths of the maps, in tokens."""
_TYPICAL = (256, 64)


def work_axes(story: PowerStory) -> Axes | Remark:
    """Return the machine-seconds of a request over its lengths: what its price is made of."""
    import pandas as pd

    if story.seconds_of(1, 1) is None:
        return not_measured("The time of prompts and outputs apart")
    points = surface(lambda i, o: (i, o, story.seconds_of(i, o)), INPUTS, OUTPUTS)
    table = pd.DataFrame(points, columns=pd.Index(["num_input", "num_output", "seconds"]))
    seconds = story.seconds_of(*_TYPICAL) or 0.0
    title = f"A request of {_TYPICAL[0]} + {_TYPICAL[1]} tokens takes {seconds:.2g} machine-seconds"
    return lengths_map(table, "seconds", label="machine-seconds of a request", title=title)


def break_even_axes(story: PowerStory, name: str | None = None) -> Axes | Remark:
    """Return the traffic from which on the machine is cheaper, over lengths.

    Args:
        story: The results.
        name: Price elsewhere; None for the first.
    """
    import pandas as pd

    names = [name] if name else list(story.prices.elsewhere)
    choice = story.choice(names[0]) if names else None
    if choice is None:
        return Remark(f"*{_no_comparison(story)}*")
    points = surface(choice.break_even, INPUTS, OUTPUTS)
    columns = ("num_input", "num_output", "requests_per_s")
    table = pd.DataFrame([{c: getattr(p, c) for c in columns} for p in points])
    won = sum(p.requests_per_s is not None for p in points)
    title = f"Against {names[0]} the machine can be cheaper at {won} of {len(points)} lengths"
    return lengths_map(
        table,
        "requests_per_s",
        label="requests/s from which on the machine is cheaper",
        title=title,
    )


def cost_axes(story: PowerStory) -> Axes | Remark:
    """Return the price of a typical request over the traffic, own and elsewhere."""
    import pandas as pd

    choices = {name: c for name in story.prices.elsewhere if (c := story.choice(name)) is not None}
    if not choices:
        return Remark(f"*{_no_comparison(story)}*")
    most = 1.0 / (story.seconds_of(*_TYPICAL) or 1.0)
    traffics = np.geomspace(most / 300, most * 3, 40).tolist()
    rows = [
        {
            "elsewhere": name,
            "requests_per_s": point.requests_per_s,
            "own_per_request": point.own_per_request,
            "elsewhere_per_request": point.elsewhere_per_request,
        }
        for name, choice in choices.items()
        for point in surface(choice.cost_at, _TYPICAL[:1], _TYPICAL[1:], traffics)
    ]
    currency = next(iter(choices.values())).machine.currency
    return cost_curves(pd.DataFrame(rows), currency=currency, title=_cost_finding(choices))


def _cost_finding(choices: Mapping[str, OwnOrElsewhere]) -> str:
    """Say from which traffic on the machine is cheaper, and what the steps of its line are."""
    lengths = f"{_TYPICAL[0]} + {_TYPICAL[1]} tokens"
    parts = []
    for name, choice in choices.items():
        rate = choice.break_even(*_TYPICAL).requests_per_s
        from_on = "never" if rate is None else f"from {format_value(rate, 2)} requests/s on"
        parts.append(f"{from_on} against {name}")
    return f"{lengths}: a machine is cheaper {', '.join(parts)}; steps are further machines"


def _no_comparison(story: PowerStory) -> str:
    if story.prices.machine is None:
        return f"Nothing is compared: {NO_PRICE}."
    if not story.prices.elsewhere:
        return "Nothing is compared: no price elsewhere is configured (prices.elsewhere)."
    return "Nothing is compared: this run does not tell prompts and outputs apart."


def energy_sentence(story: PowerStory) -> str:
    """Return joules of a token and of a request, tokens per kilowatt-hour, and carbon."""
    row = _instance(story)
    if row is None:
        return "No instance was measured."
    joules = number(row, "energy.j_per_token")
    if joules is None:
        return f"**Joules:** none: {row.get('energy.reason')}."
    text = (
        f"**Joules:** a token takes {joules_text(row, 'j_per_token', 'J')}, a request "
        f"{joules_text(row, 'j_per_request', 'J')}; a kilowatt-hour gives "
        f"{format_value(tokens_per_kwh(joules) / 1e6, 3)} million tokens."
    )
    carbon = story.prices.carbon
    if carbon is None:
        return text
    return (
        f"{text} A million tokens emit {1e6 * carbon.grams(joules):.3g} g of CO2 ({carbon.source})."
    )


def money_sentence(story: PowerStory) -> str:
    """Return the price of a million tokens, a request and a machine-hour."""
    row = _instance(story)
    machine = story.prices.machine
    if row is None:
        return f"**Money:** {NO_PRICE if machine is None else 'no instance was measured'}."
    cost = cost_section(row, machine)
    if cost["reason"] is not None or machine is None:
        return f"**Money:** {cost['reason']}."
    unit = cost["currency"]
    derived = ", electricity for a derived energy" if cost["derived"] else ""
    return (
        f"**Money:** {format_value(cost['per_million_output_tokens'], 3)} {unit} for a million "
        f"output tokens, {format_value(1000 * cost['per_request'], 3)} {unit} for 1000 requests, "
        f"{format_value(cost['per_machine_hour'], 3)} {unit} for an hour of the instance, at "
        f"{machine.utilisation:.0%} utilisation{derived} (prices of {machine.date}: "
        f"{machine.source})."
    )


def elsewhere_sentence(story: PowerStory) -> str:
    """Return from which traffic on the machine is cheaper than each price elsewhere."""
    parts = []
    for name in story.prices.elsewhere:
        choice = story.choice(name)
        if choice is None:
            continue
        point = choice.break_even(*_TYPICAL)
        most = f"it takes {point.capacity_per_s:.2g}"
        if point.requests_per_s is None:
            parts.append(f"never against `{name}` with one machine ({most} requests/s)")
        else:
            parts.append(f"{_from_where(point)} against `{name}` ({most})")
    if not parts:
        return f"**Own or elsewhere:** {_no_comparison(story)}"
    lengths = f"{_TYPICAL[0]} + {_TYPICAL[1]} tokens"
    return f"**Own or elsewhere:** with {lengths} the machine is cheaper: {'; '.join(parts)}."


def _from_where(point: BreakEven) -> str:
    """Return the traffic from which on the machine is cheaper, in words."""
    if not point.requests_per_s:
        return "from the first request on"
    return f"from {point.requests_per_s:.2g} requests/s"


def _instance(story: PowerStory) -> Row | None:
    """Return the chosen instance, or the first that was measured where none was chosen."""
    rows = [*story.rows(THREADS), *story.rows(REPLICAS)]
    return story.size or next(iter(rows), None)
