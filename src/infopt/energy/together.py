"""The energy of several processes that worked at the same time on one machine."""

from __future__ import annotations

from collections.abc import Sequence

from infopt.energy.attribution import NJ_PER_J, Attribution
from infopt.energy.model import EnergyConstants, modelled_reading
from infopt.energy.reading import EnergyReading, ModelledWork
from infopt.energy.run import RunEnergy


def modelled_together(
    parts: Sequence[RunEnergy], seconds: float, num_cores: int, constants: EnergyConstants
) -> RunEnergy:
    """Return the modelled energy of processes that ran side by side.

    Their CPU seconds and bytes add up. Their cores are reserved from the first start to the last
    end: what one of them waits for the others is idle time, and has its energy.

    Args:
        parts: The runs, each with a modelled energy; without one there is none together.
        seconds: First start to last end.
        num_cores: Cores of all of them.
        constants: Of the model.
    """
    works = [part.reading.work for part in parts]
    known = [work for work in works if work is not None]
    if not parts or len(known) < len(works):
        reasons = [part.reading.reason for part in parts if part.reading.reason]
        reason = reasons[0] if reasons else "the work of a process was not counted"
        return RunEnergy(EnergyReading.none(reason, seconds))
    busy_s, num_bytes = (sum(getattr(w, n) for w in known) for n in ("busy_core_s", "dram_bytes"))
    work = ModelledWork(seconds * num_cores, busy_s, num_bytes)
    reading = modelled_reading(work, seconds, constants)
    accounts = [part.account for part in parts if part.account is not None]
    return RunEnergy(reading, _merged(accounts, reading.joules or 0.0), parts[0].why_not)


def _merged(accounts: Sequence[Attribution], joules: float) -> Attribution:
    """Return one account of all; what nobody's account holds is idle."""
    merged = Attribution(
        round(joules * NJ_PER_J), split="+".join(sorted({a.split for a in accounts})) or "flops"
    )
    for account in accounts:
        merged.requests |= account.requests
    merged.idle_nj = merged.total_nj - merged.prefill_nj - merged.decode_nj
    return merged
