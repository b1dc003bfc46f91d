"""Prices of a table of runs."""

import pandas as pd
import pytest

from infopt.energy.cost import CarbonIntensity, MachinePrice
from infopt.experiments.costs import add_costs

QUOTE = {"date": "2026-11-01", "source": "made up for this test"}
TABLE = pd.DataFrame(
    {
        "run": ["a", "b", "c"],
        "throughput.output_tokens_per_s": [1000.0, 500.0, None],
        "throughput.requests_per_s": [10.0, 5.0, None],
        "energy.j_per_token": [0.1, None, None],
        "energy.j_per_request": [10.0, None, None],
        "energy.watts": [100.0, None, None],
        "energy.source": ["modelled", None, None],
    }
)


def test_costs_follow_from_throughput_and_energy() -> None:
    price = MachinePrice(currency="EUR", per_hour=3.6, kwh_price=0.36, **QUOTE)
    carbon = CarbonIntensity(g_per_kwh=360.0, **QUOTE)
    found = add_costs(TABLE, price, carbon)
    assert found["cost.per_million_output_tokens"][0] == pytest.approx(1.0 + 0.01)
    assert found["cost.per_request"][0] == pytest.approx(1e-4 + 1e-6)
    assert found["cost.per_machine_hour"][0] == pytest.approx(3.6 + 0.036)
    assert found["carbon.g_per_request"][0] == pytest.approx(1e-3)
    assert "energy is not known" in found["cost.reason"][1]
    assert "no throughput" in found["cost.reason"][2]
    assert found["cost.derived"].tolist() == [True, None, None]
    assert found["cost.per_request"].isna().tolist() == [False, True, True]


def test_with_electricity_included_no_energy_is_needed() -> None:
    price = MachinePrice(currency="EUR", per_hour=3.6, **QUOTE)
    found = add_costs(TABLE, price)
    assert found["cost.per_million_output_tokens"][1] == pytest.approx(2.0)
    assert found["cost.derived"][0] is not True  # nothing in it was derived
    assert "carbon.g_per_token" not in found.columns
    assert "cost.per_request" not in TABLE.columns  # the caller's table is left alone
