"""All prices of a configuration: the machine, electricity, carbon, and what others ask.

    prices:
      machine: {currency: EUR, per_hour: 0.40, date: 2026-11-01, source: the invoice}
      electricity: {currency: EUR, per_kwh: 0.28, date: 2026-11-01, source: the contract}
      pue: {value: 1.3, date: 2026-11-01, source: the data centre's report}
      carbon: {g_per_kwh: 380, date: 2026-11-01, source: the grid operator}
      elsewhere:
        some-api: {currency: EUR, per_million_input: 0.1, per_million_output: 0.4,
                   date: 2026-11-01, source: its price list}

Nothing has a default: what is not given is not known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from infopt.energy.break_even import Elsewhere
from infopt.energy.cost import (
    CarbonIntensity,
    MachinePrice,
    Quoted,
    RequestPrice,
    TokenPrice,
    check_pue,
)
from infopt.errors import ConfigError, InfoptError, check_known_keys, check_mapping

NO_PRICE = "no price of the machine is configured (prices.machine)"

Q = TypeVar("Q", bound=Quoted)


@dataclass(frozen=True, slots=True, kw_only=True)
class HourPrice(Quoted):
    """A machine by the hour.

    Attributes:
        currency: ISO code.
        per_hour: Price of an hour, whether it works or not; 0 for one that is paid for.
    """

    currency: str
    per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectricityPrice(Quoted):
    """Electricity that the machine's price does not include.

    Attributes:
        currency: ISO code.
        per_kwh: Price of a kilowatt-hour.
    """

    currency: str
    per_kwh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerUsage(Quoted):
    """Power usage effectiveness of the building.

    Attributes:
        value: Watts of the building per watt of the machine, >= 1.
    """

    value: float

    def __post_init__(self) -> None:
        """Check every value."""
        Quoted.__post_init__(self)
        check_pue("PowerUsage.value", self.value)


@dataclass(frozen=True, slots=True)
class Prices:
    """What a configuration knows of prices.

    Attributes:
        machine: The machine with its electricity; None where it has no price.
        carbon: What a kilowatt-hour emits; None where it is not known.
        elsewhere: Prices of others by name.
    """

    machine: MachinePrice | None = None
    carbon: CarbonIntensity | None = None
    elsewhere: Mapping[str, Elsewhere] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Prices:
        """Read the configuration's ``prices``.

        Raises:
            ConfigError: An unknown key, a quote without date or source, two currencies, or
                electricity for a machine without a price.
        """
        known = ("machine", "utilisation", "electricity", "pue", "carbon", "elsewhere")
        check_known_keys(values, known, "prices")
        hour = _quote(HourPrice, values, "machine")
        power = _quote(ElectricityPrice, values, "electricity")
        usage = _quote(PowerUsage, values, "pue")
        carbon = _quote(CarbonIntensity, values, "carbon")
        machine = _machine(hour, power, usage, values.get("utilisation", 1.0))
        if carbon is not None and usage is not None:
            carbon = dataclasses.replace(
                carbon, pue=usage.value, source=f"{carbon.source}; PUE: {usage.source}"
            )
        entries = values.get("elsewhere", {})
        check_mapping(entries, "prices.elsewhere")
        elsewhere = {name: _elsewhere(name, entry) for name, entry in entries.items()}
        for name, price in elsewhere.items():
            if machine is not None:
                _check_same(machine.currency, price.currency, f"prices.elsewhere.{name}")
        return cls(machine, carbon, elsewhere)


def _machine(
    hour: HourPrice | None,
    power: ElectricityPrice | None,
    usage: PowerUsage | None,
    utilisation: float,
) -> MachinePrice | None:
    if hour is None:
        if power is not None:
            raise ConfigError(
                "prices.electricity needs prices.machine.",
                field="prices.machine",
                remedy="Give it per_hour: 0 for a machine that is paid for, and say so as source.",
            )
        return None
    if power is not None:
        _check_same(hour.currency, power.currency, "prices.electricity")
    if not hour.per_hour and (power is None or not power.per_kwh):
        raise ConfigError(
            "prices.machine.per_hour is 0 and electricity has no price: everything would be free.",
            field="prices.machine.per_hour",
            value=hour.per_hour,
            remedy="Give electricity its price, or leave out prices.machine.",
        )
    parts = [("", hour), ("; electricity: ", power), ("; PUE: ", usage)]
    quotes = [(words, quote) for words, quote in parts if quote is not None]
    return MachinePrice(
        currency=hour.currency,
        per_hour=hour.per_hour,
        utilisation=utilisation,
        kwh_price=0.0 if power is None else power.per_kwh,
        pue=1.0 if usage is None else usage.value,
        date=min(quote.date for _, quote in quotes),
        source="".join(words + quote.source for words, quote in quotes),
    )


def _elsewhere(name: str, entry: Mapping[str, Any]) -> Elsewhere:
    kind = RequestPrice if isinstance(entry, Mapping) and "flat" in entry else TokenPrice
    return _named(kind, entry, f"elsewhere.{name}")


def _quote(kind: type[Q], values: Mapping[str, Any], key: str) -> Q | None:
    return None if values.get(key) is None else _named(kind, values[key], key)


def _named(kind: type[Q], entry: Mapping[str, Any], key: str) -> Q:
    try:
        return kind.from_dict(entry)
    except InfoptError as error:
        raise ConfigError(
            f"prices.{key}: {error.message}",
            field=f"prices.{key}",
            value=error.value,
            remedy=error.remedy,
        ) from error


def _check_same(first: str, second: str, where: str) -> None:
    if first != second:
        raise ConfigError(
            f"{where} is in {second}, the machine's price in {first}.",
            field=f"{where}.currency",
            value=second,
            remedy="Convert one of them, and say so in its source.",
        )
