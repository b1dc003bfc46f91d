"""What a derived energy is worth: does an order between runs hold wherever the constants are?"""

from __future__ import annotations

from collections.abc import Sequence

from infopt.energy import EnergyConstants, ModelledWork, order_survives
from infopt.results.html import format_value
from infopt.select.rows import Row, nested, number, text

ENERGY_SOURCE = "energy.source"
DERIVED = "modelled"

_WORK = ("idle_core_s_per_token", "busy_core_s_per_token", "dram_bytes_per_token")


def is_derived(row: Row) -> bool:
    """Tell whether the energy of a run was computed from constants instead of measured."""
    return text(row, ENERGY_SOURCE) == DERIVED


def rests_on_model(row: Row, column: str) -> bool:
    """Tell whether a number is a derived energy, or a cost that a derived energy is a part of.

    Args:
        row: A row of the results table.
        column: Its column.
    """
    if column.startswith("cost."):
        return row.get("cost.derived") is True
    return column.startswith("energy.") and is_derived(row)


def energy_notes(chosen: Row, others: Sequence[Row]) -> tuple[str, ...]:
    """Say that the energy of the chosen run is derived, and against whom its order survives.

    Args:
        chosen: A row of the results table.
        others: The runs it is compared with.
    """
    value, work = number(chosen, "energy.j_per_token"), work_of(chosen)
    if not is_derived(chosen) or value is None or work is None:
        return ()
    low, high = (number(chosen, f"energy.j_per_token_{end}") for end in ("low", "high"))
    ends = f", {format_value(low, 2)} to {format_value(high, 2)}" if low and high else ""
    note = (
        f"Its energy of {format_value(value, 2)} J/token is derived from constants, not measured"
        f"{ends} over their ranges."
    )
    rivals = [(str(r["run"]), w) for r in others if (w := work_of(r)) is not None]
    constants = constants_of(chosen)
    open_orders = [run for run, w in rivals if not order_survives(work, w, constants)]
    return (note, *_order_note(len(rivals), open_orders))


def work_of(row: Row) -> ModelledWork | None:
    """Return the work per output token that a derived energy was computed from."""
    values = [number(row, f"energy.{name}") for name in _WORK]
    known = [v for v in values if v is not None]
    return ModelledWork(*known) if len(known) == len(values) and is_derived(row) else None


def constants_of(row: Row) -> EnergyConstants:
    """Return the constants that a derived energy was computed from: the run's own, if it has any.

    Args:
        row: A row of the results table.
    """
    energy = nested(row, "workload").get("energy") or {}
    return EnergyConstants.from_dict(energy.get("constants") or {})


def _order_note(num_rivals: int, open_orders: Sequence[str]) -> tuple[str, ...]:
    if not num_rivals:
        return ()
    if not open_orders:
        return ("Its place by derived energy is the same at all ends of these ranges.",)
    names = ", ".join(open_orders)
    return (f"Within these ranges its derived energy can be above or below that of {names}.",)
