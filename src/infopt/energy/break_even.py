"""Break-even of a machine of one's own against a price per request or per token.

Traffic below the break-even is cheaper elsewhere: the machine is paid whether it works or not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from infopt.energy.cost import MachinePrice, RequestPrice, TokenPrice, check_positive, is_finite
from infopt.errors import ConfigError

T = TypeVar("T")
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


@dataclass(frozen=True, slots=True)
class OwnOrElsewhere:
    """A machine of one's own beside the price of another.

    Attributes:
        machine: Its price; it is filled up to ``utilisation`` of what it takes.
        elsewhere: The other price.
        capacity: What a machine takes.
        cached_share: Share of prompts that is cached elsewhere.
        energy: Joules of a request by lengths; needed where electricity is paid apart.

    Raises:
        ConfigError: The prices have different currencies, or the share is no share.
    """

    machine: MachinePrice
    elsewhere: Elsewhere
    capacity: Capacity
    cached_share: float = 0.0
    energy: Callable[[float, float], float] | None = None

    def __post_init__(self) -> None:
        """Check the currencies and the share."""
        if self.machine.currency != self.elsewhere.currency:
            raise ConfigError(
                f"Prices in {self.machine.currency} and {self.elsewhere.currency} cannot be "
                "compared.",
                field="currency",
                value=self.elsewhere.currency,
                remedy="Convert one of them, and say so in its source.",
            )
        if not is_finite(self.cached_share) or not 0 <= self.cached_share <= 1:
            raise ConfigError(
                f"cached_share must be from 0 to 1, got {self.cached_share!r}.",
                field="cached_share",
                value=self.cached_share,
            )

    def break_even(self, num_input: float, num_output: float) -> BreakEven:
        """Return the traffic from which on one machine is cheaper.

        A machine costs the same whatever comes, a request elsewhere ``p``: with its electricity
        ``e`` per request the machine is cheaper from ``hour / (3600 x (p - e))`` requests per
        second. ``utilisation`` plays no part, since traffic is what is looked for.

        Args:
            num_input: Prompt tokens.
            num_output: Output tokens.

        Raises:
            ConfigError: Electricity is paid apart and the energy is not known, or the machine takes
                nothing.
        """
        price = self._price(num_input, num_output)
        most = self._most(num_input, num_output)
        margin = price - self._electricity(num_input, num_output)
        traffic = self.machine.per_hour / (3600.0 * margin) if margin > 0 else math.inf
        return BreakEven(num_input, num_output, traffic if traffic <= most else None, most, price)

    def cost_at(self, num_input: float, num_output: float, requests_per_s: float) -> CostPoint:
        """Return both prices of a request at some traffic; machines come in whole numbers.

        Args:
            num_input: Prompt tokens.
            num_output: Output tokens.
            requests_per_s: Traffic.

        Raises:
            ConfigError: There is no traffic, the machine takes nothing, or an energy is needed and
                not known.
        """
        check_positive("requests_per_s", requests_per_s)
        usable = self._most(num_input, num_output) * self.machine.utilisation
        num_machines = max(math.ceil(requests_per_s / usable - 1e-9), 1)
        own = num_machines * self.machine.per_hour / (3600.0 * requests_per_s)
        return CostPoint(
            num_input,
            num_output,
            requests_per_s,
            num_machines,
            own + self._electricity(num_input, num_output),
            self._price(num_input, num_output),
        )

    def _most(self, num_input: float, num_output: float) -> float:
        """Return the requests per second that a machine takes; one that takes none has no price."""
        most = self.capacity(num_input, num_output)
        check_positive("capacity", most)
        return most

    def _price(self, num_input: float, num_output: float) -> float:
        return self.elsewhere.per_request(num_input, num_output, num_input * self.cached_share)

    def _electricity(self, num_input: float, num_output: float) -> float:
        joules = self.energy(num_input, num_output) if self.energy else None
        return self.machine.electricity(joules)


def surface(point: Callable[..., T], *axes: Sequence[float]) -> list[T]:
    """Return a figure at every combination of some values, the last axis fastest.

    >>> surface(choice.break_even, [100, 1000], [10, 100])
    >>> surface(choice.cost_at, [100, 1000], [10, 100], [0.1, 1.0, 10.0])

    Args:
        point: What is computed at each.
        axes: Values of each argument.
    """
    return [point(*values) for values in itertools.product(*axes)]
