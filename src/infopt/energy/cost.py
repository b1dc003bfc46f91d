"""What serving costs and emits, and from where on a machine of one's own is cheaper.

Every price comes from the user, with the date and the source it is from; none is built in.

    per machine-hour        = price + W / 1000 x kWh price x PUE   (electricity, if paid apart)
    per million tokens      = price x 1e6 / (3600 x tokens/s x utilisation) + electricity
    per token (an API)      = input, cached input and output tokens x their prices
    per request (flat)      = one price

The electricity of a token is J / 3.6e6 x kWh price x PUE; carbon is kWh x intensity x PUE.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeGuard, TypeVar

from infopt.errors import ConfigError, check_known_keys

J_PER_KWH = 3.6e6
_SECONDS_PER_HOUR = 3600.0

P = TypeVar("P", bound="Quoted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """A figure from outside.

    Attributes:
        date: Day on which it held, as YYYY-MM-DD.
        source: Where it is from.
    """

    date: str
    source: str

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: What is no number (or a negative or infinite one), no date, or no source.
        """
        name = type(self).__name__
        try:
            datetime.date.fromisoformat(self.date)
        except (TypeError, ValueError):
            raise ConfigError(
                f"{name}.date must be a day as YYYY-MM-DD, got {self.date!r}.",
                field=f"{name}.date",
                value=self.date,
            ) from None
        if not isinstance(self.source, str) or not self.source:
            raise ConfigError(f"{name} needs a source.", field=f"{name}.source", value=self.source)
        for entry in fields(self):
            _check_field(f"{name}.{entry.name}", getattr(self, entry.name), str(entry.type))

    @classmethod
    def from_dict(cls: type[P], values: Mapping[str, Any]) -> P:
        """Read plain data.

        Raises:
            ConfigError: An unknown key, a missing one, or a bad value.
        """
        known = [f.name for f in fields(cls)]
        check_known_keys(values, known, cls.__name__)
        day = values.get("date")
        if isinstance(day, datetime.date):  # what YAML makes of a bare day
            values = {**values, "date": day.isoformat()}
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__}: {error}.", field=cls.__name__) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePrice(Quoted):
    """A machine by the hour.

    Attributes:
        currency: ISO code.
        per_hour: Price of an hour, whether it works or not.
        utilisation: Share of the hours' throughput that is asked for (0 to 1].
        kwh_price: Electricity, where the price does not include it; 0: included.
        pue: Power usage effectiveness: what the building takes per watt of the machine, >= 1.
    """

    currency: str
    per_hour: float
    utilisation: float = 1.0
    kwh_price: float = 0.0
    pue: float = 1.0

    def __post_init__(self) -> None:
        """Check every value."""
        Quoted.__post_init__(self)
        if not 0 < self.utilisation <= 1:
            raise _out_of_range("MachinePrice.utilisation", self.utilisation, "over 0, at most 1")
        check_pue("MachinePrice.pue", self.pue)

    def per_machine_hour(self, watts: float | None = None) -> float:
        """Return the price of an hour with its electricity.

        Args:
            watts: Mean power; needed where electricity is paid apart.

        Raises:
            ConfigError: Electricity is paid apart and the power is not known.
        """
        if not self.kwh_price:
            return self.per_hour
        if watts is None:
            raise ConfigError(
                "Electricity has a price, and the power of the machine is not known.",
                field="MachinePrice.kwh_price",
                value=self.kwh_price,
                remedy="Measure its energy, or use a price that includes electricity.",
            )
        return self.per_hour + watts / 1000 * self.kwh_price * self.pue

    def per_million_tokens(self, tokens_per_s: float, j_per_token: float | None = None) -> float:
        """Return the price of a million output tokens.

        The machine is paid all the time and works ``utilisation`` of it; electricity is counted per
        token, as idle time is not this configuration's.

        Args:
            tokens_per_s: Output tokens per second at full load.
            j_per_token: Energy of one; needed where electricity is paid apart.
        """
        check_positive("tokens_per_s", tokens_per_s)
        machine = self.per_hour * 1e6 / (_SECONDS_PER_HOUR * tokens_per_s * self.utilisation)
        return machine + 1e6 * self.electricity(j_per_token)

    def per_request(self, requests_per_s: float, j_per_request: float | None = None) -> float:
        """Return the price of a request.

        Args:
            requests_per_s: Requests per second at full load.
            j_per_request: Energy of one; needed where electricity is paid apart.
        """
        check_positive("requests_per_s", requests_per_s)
        machine = self.per_hour / (_SECONDS_PER_HOUR * requests_per_s * self.utilisation)
        return machine + self.electricity(j_per_request)

    def electricity(self, joules: float | None) -> float:
        """Return the price of some energy where it is paid apart, else 0."""
        if not self.kwh_price:
            return 0.0
        if joules is None:
            raise ConfigError(
                "Electricity has a price, and the energy of the work is not known.",
                field="MachinePrice.kwh_price",
                value=self.kwh_price,
                remedy="Measure its energy, or use a price that includes electricity.",
            )
        return electricity_cost(joules, self.kwh_price, self.pue)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice(Quoted):
    """An API that is paid by the token.

    Attributes:
        currency: ISO code.
        per_million_input: Prompt tokens.
        per_million_cached: Prompt tokens that the provider found in its cache.
        per_million_output: Output tokens.
    """

    currency: str
    per_million_input: float
    per_million_output: float
    per_million_cached: float | None = None

    def per_request(self, num_input: float, num_output: float, num_cached: float = 0.0) -> float:
        """Return the price of a request.

        Args:
            num_input: Prompt tokens, cached ones included.
            num_output: Output tokens.
            num_cached: Prompt tokens that are paid as cached.
        """
        if not 0 <= num_cached <= num_input:
            raise _out_of_range("num_cached", num_cached, f"from 0 to {num_input:g}")
        cached_price = self.per_million_cached
        if cached_price is None:
            cached_price = self.per_million_input
        total = (num_input - num_cached) * self.per_million_input
        return (total + num_cached * cached_price + num_output * self.per_million_output) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPrice(Quoted):
    """A service that takes the same for every request.

    Attributes:
        currency: ISO code.
        flat: Price of a request.
    """

    currency: str
    flat: float

    def per_request(self, num_input: float, num_output: float, num_cached: float = 0.0) -> float:
        """Return the price, whatever the request holds."""
        del num_input, num_output, num_cached
        return self.flat


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonIntensity(Quoted):
    """What a kilowatt-hour emits.

    Attributes:
        g_per_kwh: Grams of CO2 equivalent.
        pue: Power usage effectiveness, >= 1.
    """

    g_per_kwh: float
    pue: float = 1.0

    def __post_init__(self) -> None:
        """Check every value."""
        Quoted.__post_init__(self)
        check_pue("CarbonIntensity.pue", self.pue)

    def grams(self, joules: float) -> float:
        """Return the grams of CO2 equivalent of some energy."""
        return joules / J_PER_KWH * self.g_per_kwh * self.pue


def tokens_per_kwh(j_per_token: float) -> float:
    """Return the tokens that a kilowatt-hour gives."""
    check_positive("j_per_token", j_per_token)
    return J_PER_KWH / j_per_token


def electricity_cost(joules: float, kwh_price: float, pue: float = 1.0) -> float:
    """Return the price of some energy."""
    return joules / J_PER_KWH * kwh_price * pue


def check_pue(name: str, value: float) -> None:
    """Refuse a building that takes less than the machine in it.

    Raises:
        ConfigError: Names it.
    """
    if value < 1:
        raise _out_of_range(name, value, "at least 1")


def _check_field(name: str, value: object, kind: str) -> None:
    """Check a field by its annotation: a text, a number, or a number that may be left out."""
    if kind == "str":
        if not isinstance(value, str) or not value:
            raise _out_of_range(name, value, "a text")
    elif value is not None or kind == "float":
        _check_number(name, value)


def _check_number(name: str, value: object) -> None:
    if not is_finite(value) or value < 0:
        raise _out_of_range(name, value, "a finite number >= 0")


def check_positive(name: str, value: object) -> None:
    """Refuse what is no finite number above 0.

    Raises:
        ConfigError: Names it.
    """
    if not is_finite(value) or value <= 0:
        raise _out_of_range(name, value, "a finite number > 0")


def is_finite(value: object) -> TypeGuard[float]:
    """Tell whether a value is a finite number; a switch is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -math.inf < value < math.inf


def _out_of_range(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{name} must be {wanted}, got {value!r}.", field=name, value=value)
