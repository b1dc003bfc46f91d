"""Prices and carbon of measured runs, worked out when a table is read: prices change, runs do not.

table = add_costs(load_results(), price, carbon)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infopt.energy.cost import CarbonIntensity, MachinePrice
from infopt.results.record import NO_COST
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd


def add_costs(
    table: pd.DataFrame, price: MachinePrice, carbon: CarbonIntensity | None = None
) -> pd.DataFrame:
    """Return the table with the columns of a record's ``cost`` filled in, and carbon.

    A run without throughput, or without the energy that its electricity is counted by, has no price
    and a ``cost.reason``.

    Args:
        table: From ``load_results``.
        price: Of the machine.
        carbon: Adds ``carbon.g_per_token`` and ``carbon.g_per_request``, where energy is known.
    """
    priced = table.copy()
    sections = [cost_section(row, price) for row in rows_of(table)]
    for key in NO_COST:
        priced[f"cost.{key}"] = [section[key] for section in sections]
    if carbon is not None:
        for name in ("token", "request"):
            priced[f"carbon.g_per_{name}"] = [
                _grams(row, f"energy.j_per_{name}", carbon) for row in rows_of(table)
            ]
    return priced


def cost_section(row: Row, price: MachinePrice) -> dict[str, Any]:
    """Return the ``cost`` of a run.

    Args:
        row: A row of the results table.
        price: Of the machine.
    """
    tokens_per_s = number(row, "throughput.output_tokens_per_s")
    requests_per_s = number(row, "throughput.requests_per_s")
    if not tokens_per_s or not requests_per_s:
        return {**NO_COST, "reason": "no throughput was measured"}
    joules, watts = number(row, "energy.j_per_token"), number(row, "energy.watts")
    if price.kwh_price and (joules is None or watts is None):
        return {**NO_COST, "reason": "electricity has a price, and the energy is not known"}
    return {
        "per_million_output_tokens": price.per_million_tokens(tokens_per_s, joules),
        "per_request": price.per_request(requests_per_s, number(row, "energy.j_per_request")),
        "per_machine_hour": price.per_machine_hour(watts),
        "currency": price.currency,
        "reason": None,
    }


def _grams(row: Row, column: str, carbon: CarbonIntensity) -> float | None:
    joules = number(row, column)
    return None if joules is None else carbon.grams(joules)
