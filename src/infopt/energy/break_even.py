"""Break-even of a machine of one's own against a price per request or per token.

Traffic below the break-even is cheaper elsewhere: the machine is paid whether it works or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infopt.energy.cost import MachinePrice, RequestPrice, TokenPrice
from infopt.errors import ConfigError

Elsewhere = TokenPrice | RequestPrice
Capacity = Callable[[float, float], float]
"""Requests per second that a machine takes at most, by prompt and output length."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """One point of the surface.

    Attributes:
        num_input: Prompt tokens.
        num_output: Output tokens.
        requests_per_s: Traffic from which on the machine is cheaper; None: never, since one machine
            does not take so much.
        capacity_per_s: What one machine takes.
        elsewhere_per_request: Price elsewhere.
    """

    num_input: float
    num_output: float
    requests_per_s: float | None
    capacity_per_s: float
    elsewhere_per_request: float


@dataclass(frozen=True, slots=True)
class CostPoint:
    """Price of a request at some traffic.

    Attributes:
        num_input: Prompt tokens.
        num_output: Output tokens.
        requests_per_s: Traffic.
        num_machines: Machines that it needs.
        own_per_request: Price on machines of one's own.
        elsewhere_per_request: Price elsewhere.
    """

    num_input: float
    num_output: float
    requests_per_s: float
    num_machines: int
    own_per_request: float
    elsewhere_per_request: float

    @property
    def is_own_cheaper(self) -> bool:
        """Whether machines of one's own win."""
        return self.own_per_request < self.elsewhere_per_request


def break_even(
    machine: MachinePrice,
    elsewhere: Elsewhere,
    capacity: Capacity,
    num_input: float,
    num_output: float,
    *,
    cached_share: float = 0.0,
    j_per_request: float | None = None,
) -> BreakEven:
    """Return the traffic from which on one machine is cheaper.

    A machine costs the same whatever comes, a request elsewhere ``p``: with its electricity ``e``
    per request the machine is cheaper from ``hour / (3600 x (p - e))`` requests per second.

    Args:
        machine: Its price; ``utilisation`` plays no part, since traffic is what is looked for.
        elsewhere: The other price.
        capacity: What the machine takes.
        num_input: Prompt tokens.
        num_output: Output tokens.
        cached_share: Share of the prompt that is cached elsewhere.
        j_per_request: Energy of a request; needed where electricity is paid apart.

    Raises:
        ConfigError: The prices have different currencies, or an energy is needed and missing.
    """
    _check_currency(machine, elsewhere)
    price = elsewhere.per_request(num_input, num_output, num_input * cached_share)
    most = capacity(num_input, num_output)
    margin = price - machine.electricity(j_per_request)
    traffic = machine.per_hour / (3600.0 * margin) if margin > 0 else math.inf
    return BreakEven(num_input, num_output, traffic if traffic <= most else None, most, price)


def break_even_surface(
    machine: MachinePrice,
    elsewhere: Elsewhere,
    capacity: Capacity,
    inputs: Sequence[float],
    outputs: Sequence[float],
    *,
    cached_share: float = 0.0,
    energy: Callable[[float, float], float] | None = None,
) -> list[BreakEven]:
    """Return the break-even over prompt and output lengths, prompts first.

    Args:
        machine: Its price.
        elsewhere: The other price.
        capacity: What the machine takes.
        inputs: Prompt lengths.
        outputs: Output lengths.
        cached_share: Share of prompts that is cached elsewhere.
        energy: Joules of a request by lengths; needed where electricity is paid apart.
    """
    return [
        break_even(
            machine,
            elsewhere,
            capacity,
            num_input,
            num_output,
            cached_share=cached_share,
            j_per_request=energy(num_input, num_output) if energy else None,
        )
        for num_input in inputs
        for num_output in outputs
    ]


def cost_at(
    machine: MachinePrice,
    elsewhere: Elsewhere,
    capacity: Capacity,
    num_input: float,
    num_output: float,
    requests_per_s: float,
    *,
    cached_share: float = 0.0,
    j_per_request: float | None = None,
) -> CostPoint:
    """Return both prices of a request at some traffic; machines come in whole numbers.

    Args:
        machine: Its price; it is filled up to ``utilisation`` of what it takes.
        elsewhere: The other price.
        capacity: What a machine takes.
        num_input: Prompt tokens.
        num_output: Output tokens.
        requests_per_s: Traffic.
        cached_share: Share of the prompt that is cached elsewhere.
        j_per_request: Energy of a request; needed where electricity is paid apart.
    """
    _check_currency(machine, elsewhere)
    if not requests_per_s > 0:
        raise ConfigError(
            f"requests_per_s must be > 0, got {requests_per_s!r}.",
            field="requests_per_s",
            value=requests_per_s,
        )
    usable = capacity(num_input, num_output) * machine.utilisation
    num_machines = max(math.ceil(requests_per_s / usable - 1e-9), 1)
    own = num_machines * machine.per_hour / (3600.0 * requests_per_s)
    return CostPoint(
        num_input,
        num_output,
        requests_per_s,
        num_machines,
        own + machine.electricity(j_per_request),
        elsewhere.per_request(num_input, num_output, num_input * cached_share),
    )


def cost_surface(
    machine: MachinePrice,
    elsewhere: Elsewhere,
    capacity: Capacity,
    inputs: Sequence[float],
    outputs: Sequence[float],
    traffics: Sequence[float],
    *,
    cached_share: float = 0.0,
    energy: Callable[[float, float], float] | None = None,
) -> list[CostPoint]:
    """Return both prices over prompt length, output length and traffic, traffic last.

    Args:
        machine: Its price.
        elsewhere: The other price.
        capacity: What a machine takes.
        inputs: Prompt lengths.
        outputs: Output lengths.
        traffics: Requests per second.
        cached_share: Share of prompts that is cached elsewhere.
        energy: Joules of a request by lengths; needed where electricity is paid apart.
    """
    return [
        cost_at(
            machine,
            elsewhere,
            capacity,
            num_input,
            num_output,
            traffic,
            cached_share=cached_share,
            j_per_request=energy(num_input, num_output) if energy else None,
        )
        for num_input in inputs
        for num_output in outputs
        for traffic in traffics
    ]


def _check_currency(machine: MachinePrice, elsewhere: Elsewhere) -> None:
    if machine.currency != elsewhere.currency:
        raise ConfigError(
            f"Prices in {machine.currency} and {elsewhere.currency} cannot be compared.",
            field="currency",
            value=elsewhere.currency,
            remedy="Convert one of them, and say so in its source.",
        )
