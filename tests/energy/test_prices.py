"""The configuration's prices: nothing is known that was not given, with its day and its source."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from infopt.energy.cost import RequestPrice, TokenPrice
from infopt.energy.prices import Prices
from infopt.errors import ConfigError

QUOTE: dict[str, Any] = {"date": "2026-11-01", "source": "made up for this test"}
MACHINE = {"currency": "EUR", "per_hour": 0.4, **QUOTE}
POWER = {"currency": "EUR", "per_kwh": 0.3, "date": "2026-10-01", "source": "the contract"}


def test_without_prices_nothing_is_known() -> None:
    assert Prices.from_dict({}) == Prices(None, None, {})
    nulls = dict.fromkeys(("machine", "electricity", "pue", "carbon"))
    assert Prices.from_dict({**nulls, "utilisation": 1.0, "elsewhere": {}}).machine is None


def test_the_machine_with_its_electricity_and_building() -> None:
    found = Prices.from_dict(
        {
            "machine": MACHINE,
            "utilisation": 0.5,
            "electricity": POWER,
            "pue": {"value": 1.3, **QUOTE},
            "carbon": {"g_per_kwh": 400, **QUOTE},
        }
    )
    assert found.machine is not None
    assert found.carbon is not None
    assert found.machine.per_machine_hour(100.0) == pytest.approx(0.4 + 0.1 * 0.3 * 1.3)
    assert found.machine.utilisation == 0.5
    assert found.machine.date == "2026-10-01"  # the oldest of its quotes
    assert "the contract" in found.machine.source
    assert found.carbon.grams(3.6e6) == pytest.approx(400 * 1.3)


def test_others_ask_by_the_token_or_by_the_request() -> None:
    found = Prices.from_dict(
        {
            "machine": MACHINE,
            "elsewhere": {
                "api": {
                    "currency": "EUR", "per_million_input": 1, "per_million_output": 4, **QUOTE,
                },
                "flat": {"currency": "EUR", "flat": 0.002, **QUOTE},
            },
        }
    )  # fmt: skip
    assert isinstance(found.elsewhere["api"], TokenPrice)
    assert isinstance(found.elsewhere["flat"], RequestPrice)


def test_a_bare_day_of_yaml_is_a_day() -> None:
    found = Prices.from_dict({"machine": {**MACHINE, "date": datetime.date(2026, 11, 1)}})
    assert found.machine is not None
    assert found.machine.date == "2026-11-01"


@pytest.mark.parametrize(
    ("bad", "field", "words"),
    [
        ({"machin": MACHINE}, None, "Did you mean 'machine'"),
        ({"machine": {"per_hour": 1, **QUOTE}}, "prices.machine", "currency"),
        ({"machine": {**MACHINE, "source": ""}}, "prices.machine", "source"),
        ({"machine": {**MACHINE, "date": "soon"}}, "prices.machine", "date"),
        ({"electricity": POWER}, "prices.machine", "needs prices.machine"),
        ({"machine": {**MACHINE, "per_hour": 0}}, "prices.machine.per_hour", "free"),
        (
            {"machine": MACHINE, "electricity": {**POWER, "currency": "USD"}},
            "prices.electricity.currency",
            "USD",
        ),
        (
            {
                "machine": MACHINE,
                "elsewhere": {"api": {"currency": "USD", "flat": 1, **QUOTE}},
            },
            "prices.elsewhere.api.currency",
            "USD",
        ),
        ({"machine": MACHINE, "pue": {"value": 0.5, **QUOTE}}, "prices.pue", "at least 1"),
        ({"pue": {"value": 0.5, **QUOTE}}, "prices.pue", "at least 1"),
        ({"machine": {**MACHINE, "per_hour": "0.40 EUR"}}, "prices.machine", "0.40 EUR"),
        ({"machine": {**MACHINE, "currency": None}}, "prices.machine", "currency"),
        ({"machine": "0.40 EUR"}, "prices.machine", "mapping"),
        ({"machine": MACHINE, "utilisation": None}, "MachinePrice.utilisation", "None"),
        ({"machine": MACHINE, "utilisation": True}, "MachinePrice.utilisation", "True"),
        ({"elsewhere": {"api": 0.002}}, "prices.elsewhere.api", "mapping"),
        ({"elsewhere": ["api"]}, "prices.elsewhere", "mapping"),
        ({"elsewhere": {"api": {"flat": 1}}}, "prices.elsewhere.api", "prices.elsewhere.api"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_named(bad, field, words) -> None:
    with pytest.raises(ConfigError) as error:
        Prices.from_dict(bad)
    assert words in str(error.value)
    assert field is None or error.value.field == field
