"""Keep a server warm, or start it when a request comes: where the one becomes cheaper.

    warm       P x (time between requests)        power of the idle server
    on demand  E                                  energy of a start

Both are equal at a mean gap of E / P seconds, the break-even. A server that waits that long after
its last request and then stops never uses more than twice what the better of both would have used,
whatever comes (the classic bound of renting skis). In money a machine costs the same in every
second that it is held, starting or waiting, so there the break-even gap is the time of a start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from infopt.energy.cost import check_positive


@dataclass(frozen=True, slots=True)
class KeepWarm:
    """What starting and waiting take; joules and watts, or any currency and currency per second.

    Attributes:
        start: Energy of a start, until the first answer begins.
        warm_per_s: Power of the idle server, above what is drawn when it is off.
    """

    start: float
    warm_per_s: float

    def __post_init__(self) -> None:
        """Check both.

        Raises:
            ConfigError: Not positive.
        """
        for name in ("start", "warm_per_s"):
            check_positive(f"KeepWarm.{name}", getattr(self, name))

    @property
    def hold_s(self) -> float:
        """Seconds of waiting that take as much as a start: stop after an idle time of this."""
        return self.start / self.warm_per_s

    @property
    def break_even_per_s(self) -> float:
        """Requests per second from which on keeping warm takes less than starting for each."""
        return self.warm_per_s / self.start

    def warm_per_request(self, requests_per_s: float) -> float:
        """Return what waiting takes per request.

        Args:
            requests_per_s: Rate of requests, each served in a time that is short beside the gaps.

        Raises:
            ConfigError: There are no requests.
        """
        check_positive("requests_per_s", requests_per_s)
        return self.warm_per_s / requests_per_s

    def hold_per_request(self, requests_per_s: float, hold_s: float | None = None) -> float:
        """Return what waiting ``hold_s`` and then stopping takes per request of Poisson traffic.

        A gap is longer than ``hold_s`` with probability ``exp(-rate x hold_s)``: then the server
        waited in vain and starts again; the mean of what it waits is ``(1 - that) / rate``.

        Args:
            requests_per_s: Rate of requests.
            hold_s: Idle seconds after which the server stops; default: the break-even.

        Raises:
            ConfigError: There are no requests.
        """
        check_positive("requests_per_s", requests_per_s)
        hold_s = self.hold_s if hold_s is None else hold_s
        stopped = math.exp(-requests_per_s * hold_s)
        waited = -math.expm1(-requests_per_s * hold_s)  # 1 - stopped, exact for rare requests
        return self.warm_per_s * waited / requests_per_s + self.start * stopped
