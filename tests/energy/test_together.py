"""Processes that run side by side: their energy adds up, waiting for each other included."""

from __future__ import annotations

import pytest

from infopt.energy import EnergyConstants, EnergyReading, ModelledWork, RunEnergy
from infopt.energy.attribution import NJ_PER_J, Attribution, RequestEnergy
from infopt.energy.model import modelled_reading
from infopt.energy.together import modelled_together

CONSTANTS = EnergyConstants()


def part(name: str, seconds: float, busy_s: float, num_bytes: float) -> RunEnergy:
    reading = modelled_reading(ModelledWork(seconds, busy_s, num_bytes), seconds, CONSTANTS)
    total = round((reading.joules or 0) * NJ_PER_J)
    account = Attribution(total, {name: RequestEnergy(total // 4, total // 2)}, split="time")
    account.idle_nj = total - total // 4 - total // 2
    return RunEnergy(reading, account, {"rapl": "absent"})


def test_work_adds_up_and_cores_are_reserved_to_the_last_end() -> None:
    """One process ends after 1 s, the other after 3: the first one's core idles for two."""
    found = modelled_together(
        [part("a", 1.0, 0.9, 1e9), part("b", 3.0, 2.5, 2e9)], 3.0, 2, CONSTANTS
    )
    assert found.reading.work == ModelledWork(6.0, pytest.approx(3.4), 3e9)
    assert found.reading.joules == pytest.approx(CONSTANTS.joules(ModelledWork(6.0, 3.4, 3e9)))
    assert found.why_not == {"rapl": "absent"}


def test_the_account_still_adds_up_exactly() -> None:
    parts = [part("a", 1.0, 0.9, 1e9), part("b", 3.0, 2.5, 2e9)]
    account = modelled_together(parts, 3.0, 2, CONSTANTS).account
    assert account is not None
    assert set(account.requests) == {"a", "b"}
    assert account.prefill_nj + account.decode_nj + account.idle_nj == account.total_nj
    assert account.idle_nj > sum(p.account.idle_nj for p in parts if p.account)


def test_one_without_energy_leaves_none() -> None:
    parts = [part("a", 1.0, 0.9, 1e9), RunEnergy(EnergyReading.none("the bytes were not counted"))]
    found = modelled_together(parts, 1.0, 2, CONSTANTS)
    assert found.reading.joules is None
    assert found.reading.reason == "the bytes were not counted"
    assert modelled_together([], 1.0, 2, CONSTANTS).reading.joules is None
