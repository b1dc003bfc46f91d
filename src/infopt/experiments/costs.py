"""Prices of measured runs, filled in when their stage is collected: prices change, runs do not.

price_records(manifests, results_dir, config["prices"])   # the pipeline: in the records
table = add_costs(load_results(), price, carbon)          # a table at hand, and carbon
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.energy.cost import CarbonIntensity, MachinePrice
from infopt.energy.prices import NO_PRICE, Prices
from infopt.results import RunRecord, record_path
from infopt.results.record import NO_COST
from infopt.results.table import flatten_record
from infopt.select.energy_order import is_derived
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd

MACHINE_SHARE = "extra.machine_share"
"""Share of the machine's cores that a run had, where it was not all of them."""


def price_records(
    manifests: Sequence[Mapping[str, Any]],
    results_dir: str | Path,
    prices: Mapping[str, Any] | None,
) -> int:
    """Fill the cost of every record that the manifests list, where it changed.

    Args:
        manifests: Of slices.
        results_dir: Folder of all results.
        prices: The configuration's ``prices``; None leaves the records alone.

    Returns:
        How many records were written.
    """
    if prices is None:
        return 0
    machine = Prices.from_dict(prices).machine
    num_written = 0
    for manifest in manifests:
        for slug in manifest["records"]:
            record = RunRecord.read(record_path(manifest["stage"], slug, results_dir))
            cost = cost_section(flatten_record(record), machine)
            if record.status == "ok" and dict(record.cost) != cost:
                record.replace(cost=cost).write(results_dir)
                num_written += 1
    return num_written


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
    for key in (*NO_COST, "derived"):
        priced[f"cost.{key}"] = [section.get(key) for section in sections]
    if carbon is not None:
        for name in ("token", "request"):
            priced[f"carbon.g_per_{name}"] = [
                _grams(row, f"energy.j_per_{name}", carbon) for row in rows_of(table)
            ]
    return priced


def cost_section(row: Row, price: MachinePrice | None) -> dict[str, Any]:
    """Return the ``cost`` of a run.

    Args:
        row: A row of the results table.
        price: Of the machine, of which the run may have had a share; None where none is known.
    """
    if price is None:
        return {**NO_COST, "reason": NO_PRICE}
    tokens_per_s = number(row, "throughput.output_tokens_per_s")
    requests_per_s = number(row, "throughput.requests_per_s")
    if not tokens_per_s or not requests_per_s:
        return {**NO_COST, "reason": "no throughput was measured"}
    joules, watts = number(row, "energy.j_per_token"), number(row, "energy.watts")
    if price.kwh_price and (joules is None or watts is None):
        return {**NO_COST, "reason": "electricity has a price, and the energy is not known"}
    share = number(row, MACHINE_SHARE) or 1.0
    own = dataclasses.replace(price, per_hour=price.per_hour * share)
    return {
        "per_million_output_tokens": own.per_million_tokens(tokens_per_s, joules),
        "per_request": own.per_request(requests_per_s, number(row, "energy.j_per_request")),
        "per_machine_hour": own.per_machine_hour(watts),
        "currency": price.currency,
        "derived": bool(price.kwh_price) and is_derived(row),
        "reason": None,
    }


def _grams(row: Row, column: str, carbon: CarbonIntensity) -> float | None:
    joules = number(row, column)
    return None if joules is None else carbon.grams(joules)
