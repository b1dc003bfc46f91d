"""Prices, carbon and break-even: check values by hand, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from infopt.energy.break_even import OwnOrElsewhere, surface
from infopt.energy.cost import (
    CarbonIntensity,
    MachinePrice,
    RequestPrice,
    TokenPrice,
    electricity_cost,
    tokens_per_kwh,
)
from infopt.errors import ConfigError

QUOTE: dict[str, Any] = {"date": "2026-11-01", "source": "made up for this test"}


def machine(**changes: Any) -> MachinePrice:
    return MachinePrice(**{"currency": "USD", "per_hour": 3.6, **QUOTE, **changes})


def tokens(**changes: Any) -> TokenPrice:
    prices = {"per_million_input": 1.0, "per_million_output": 4.0, "per_million_cached": 0.25}
    return TokenPrice(**{"currency": "USD", **prices, **QUOTE, **changes})


def choice(own: MachinePrice, other: Any, capacity: float, **options: Any) -> OwnOrElsewhere:
    return OwnOrElsewhere(own, other, lambda i, o: capacity, **options)


def test_a_million_tokens_cost_hours_and_electricity() -> None:
    """Hourly price x 1e6 / (3600 x tokens/s) + kWh price x J/token x 1e6 / 3.6e6 x PUE."""
    assert machine().per_million_tokens(1000.0) == pytest.approx(1.0)
    paid = machine(kwh_price=0.30, pue=1.2)
    assert paid.per_million_tokens(1000.0, j_per_token=0.5) == pytest.approx(
        1.0 + 0.30 * 0.5 * 1e6 / 3.6e6 * 1.2
    )


def test_utilisation_divides_the_throughput() -> None:
    assert machine(utilisation=0.25).per_million_tokens(1000.0) == pytest.approx(4.0)
    assert machine(utilisation=0.5).per_request(2.0) == pytest.approx(3.6 / 3600)


def test_a_machine_hour_with_its_electricity() -> None:
    assert machine().per_machine_hour() == 3.6
    assert machine(kwh_price=0.2, pue=1.5).per_machine_hour(watts=400) == pytest.approx(3.72)


def test_a_request_by_the_token() -> None:
    price = tokens()
    assert price.per_request(1000, 500) == pytest.approx(0.001 + 0.002)
    assert price.per_request(1000, 500, num_cached=800) == pytest.approx(0.0002 + 0.0002 + 0.002)
    assert tokens(per_million_cached=None).per_request(1000, 0, 800) == pytest.approx(0.001)


def test_energy_units() -> None:
    assert tokens_per_kwh(0.5) == pytest.approx(7.2e6)
    assert electricity_cost(3.6e6, 0.25, 1.2) == pytest.approx(0.30)
    carbon = CarbonIntensity(g_per_kwh=400, pue=1.5, **QUOTE)
    assert carbon.grams(1.8e6) == pytest.approx(300.0)


def test_break_even_is_where_both_cost_the_same() -> None:
    own, other = machine(kwh_price=0.30, pue=1.2), tokens()
    either = choice(own, other, 5.0, energy=lambda i, o: 2000.0)
    point = either.break_even(1000, 500)
    assert point.requests_per_s is not None
    electricity = 2000 / 3.6e6 * 0.30 * 1.2
    assert point.requests_per_s == pytest.approx(3.6 / 3600 / (0.003 - electricity))
    there = either.cost_at(1000, 500, point.requests_per_s)
    assert there.own_per_request == pytest.approx(there.elsewhere_per_request)


def test_there_is_no_break_even_beyond_what_a_machine_takes() -> None:
    assert choice(machine(), tokens(), 0.1).break_even(1000, 500).requests_per_s is None
    free = RequestPrice(currency="USD", flat=0.0, **QUOTE)
    assert choice(machine(), free, 1e9).break_even(1, 1).requests_per_s is None


def test_longer_outputs_bring_the_break_even_down() -> None:
    """Prices by the token rise with length; where the machine keeps up, it pays off earlier."""
    points = surface(choice(machine(), tokens(), 1e3).break_even, [100, 1000], [10, 100])
    assert [(p.num_input, p.num_output) for p in points] == [
        (100, 10), (100, 100), (1000, 10), (1000, 100),
    ]  # fmt: skip
    traffic = [p.requests_per_s or 0 for p in points]
    assert traffic[0] > traffic[1]
    assert traffic[2] > traffic[3]


def test_prompts_that_are_cached_elsewhere_cost_less_there() -> None:
    full, cached = (choice(machine(), tokens(), 1e3, cached_share=c) for c in (0.0, 0.8))
    assert full.break_even(1000, 500).elsewhere_per_request == pytest.approx(0.003)
    assert cached.break_even(1000, 500).elsewhere_per_request == pytest.approx(0.0024)


def test_a_flat_price_makes_short_requests_dear() -> None:
    either = choice(machine(), RequestPrice(currency="USD", flat=0.002, **QUOTE), 1e3)
    short, long = either.break_even(10, 10), either.break_even(10_000, 1000)
    assert short.requests_per_s == long.requests_per_s == pytest.approx(0.5)


def test_machines_come_in_whole_numbers() -> None:
    either = choice(machine(utilisation=0.5), tokens(), 4.0)

    def at(traffic: float) -> tuple[int, float]:
        point = either.cost_at(1000, 500, traffic)
        return point.num_machines, point.own_per_request

    assert at(2.0) == (1, pytest.approx(0.0005))
    assert at(2.1) == (2, pytest.approx(2 * 0.001 / 2.1))
    assert at(0.1) == (1, pytest.approx(0.01))


def test_the_surface_over_lengths_and_traffic_changes_sides_at_the_break_even() -> None:
    either, traffics = choice(machine(), tokens(), 100.0), [0.1, 1.0, 10.0]
    points = surface(either.cost_at, [1000], [10, 500], traffics)
    assert [(p.num_output, p.requests_per_s) for p in points] == [
        (o, t) for o in (10, 500) for t in traffics
    ]
    for point in points:
        even = either.break_even(1000, point.num_output)
        assert even.requests_per_s is not None
        assert point.is_own_cheaper == (point.requests_per_s > even.requests_per_s)
    assert {p.is_own_cheaper for p in points} == {True, False}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: machine(date="last week"), "date"),
        (lambda: machine(source=""), "source"),
        (lambda: machine(per_hour=-1), "per_hour"),
        (lambda: machine(per_hour=float("nan")), "per_hour"),
        (lambda: machine(utilisation=0), "utilisation"),
        (lambda: machine(utilisation=1.5), "utilisation"),
        (lambda: machine(pue=0.9), "pue"),
        (lambda: machine(kwh_price=0.3).per_million_tokens(10.0), "energy of the work"),
        (lambda: machine(kwh_price=0.3).per_machine_hour(), "power of the machine"),
        (lambda: machine().per_million_tokens(0), "tokens_per_s"),
        (lambda: tokens().per_request(10, 1, num_cached=11), "num_cached"),
        (lambda: MachinePrice.from_dict({"per_hours": 1}), "per_hour"),
        (lambda: MachinePrice.from_dict({"per_hour": 1, "currency": "USD"}), "date"),
        (lambda: choice(machine(), tokens(currency="EUR"), 1.0), "EUR"),
        (lambda: choice(machine(), tokens(), 1.0).cost_at(1, 1, 0), "requests_per_s"),
        (lambda: tokens_per_kwh(0), "j_per_token"),
        (lambda: tokens_per_kwh(None), "j_per_token"),
        (lambda: machine(per_hour="0.40"), "per_hour"),
        (lambda: machine(per_hour=None), "per_hour"),
        (lambda: machine(currency=""), "currency"),
        (lambda: choice(machine(), tokens(), 0.0).cost_at(1, 1, 1), "capacity"),
        (lambda: choice(machine(), tokens(), 0.0).break_even(1, 1), "capacity"),
        (lambda: OwnOrElsewhere(machine(), tokens(), lambda i, o: 1.0, 1.5), "cached_share"),
        (lambda: CarbonIntensity(g_per_kwh=400, pue=0.5, **QUOTE), "pue"),
    ],
)
def test_what_is_impossible_or_has_no_source_is_refused(build, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build()


def test_prices_are_read_from_plain_data() -> None:
    values = {"currency": "EUR", "per_hour": 2.0, "utilisation": 0.6, **QUOTE}
    assert MachinePrice.from_dict(values).source == QUOTE["source"]
