"""`ServeConfig`: how the server listens, whom it lets in and when it gives up."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from infopt.errors import ConfigError, nearest
from infopt.serve.tools.parsers import PARSERS
from infopt.serve.tools.tags import TAGS

# The names of `infopt.energy.choose.MeterName`, without the import of torch that comes with it:
# `infopt serve --help` reads this module. A test compares them.
MeterName = Literal["auto", "nvml", "rapl", "power-integral", "modelled", "none"]


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Options of the HTTP server (the engines have their own).

    Attributes:
        host: Address to listen on; 0.0.0.0 is everyone, and then wants an API key.
        port: Port to listen on; 0 takes a free one.
        api_key: Key that requests must bring as ``Authorization: Bearer KEY``.
        cors_origins: Origins that browsers may call from; none by default, "*" is all.
        max_body_bytes: Longest request body; more is refused with 413.
        request_timeout_s: Longest time a request may take, its wait in the queue included.
        grace_s: On SIGTERM, time for running requests to finish.
        retry_after_s: What a refused client is told to wait.
        tool_parser: Form in which the models write tool calls; by default the one that the chat
            template shows, and "none" leaves calls in the text.
        reasoning_parser: Tags around reasoning; by default those in the chat template, and "none"
            leaves reasoning in the text.
        energy: Meter for the energy of requests (auto, nvml, rapl, power-integral, modelled); by
            default none.
        energy_constants: YAML file with constants of the modelled energy in place of the default
            ones, each with value, low, high and source (docs/energy.md).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 8 * 2**20
    request_timeout_s: float = 600.0
    grace_s: float = 30.0
    retry_after_s: int = 1
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    energy: str = "none"
    energy_constants: str | None = None

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: Names the option and its value.
        """
        self._check("port", 0, 65535)
        self._check("max_body_bytes", 1, math.inf)
        self._check("request_timeout_s", 0.001, math.inf)
        self._check("grace_s", 0, math.inf)
        self._check("retry_after_s", 0, math.inf)
        self._check_name("tool_parser", PARSERS)
        self._check_name("reasoning_parser", TAGS)
        self._check_name("energy", [name for name in get_args(MeterName) if name != "none"])
        if self.api_key is not None and not self.api_key:
            raise ConfigError("api_key is empty.", field="api_key", remedy="Leave it out.")
        object.__setattr__(self, "cors_origins", tuple(self.cors_origins))

    def _check_name(self, name: str, known: Iterable[str]) -> None:
        value, names = getattr(self, name), [*known, "none"]
        if value is not None and value not in names:
            raise ConfigError(
                f"{name} {value!r} is unknown.{nearest(value, names)}",
                field=name,
                value=value,
                remedy=f"Valid names: {', '.join(names)}.",
            )

    def _check(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not low <= value <= high:
            limit = f"from {low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
            raise ConfigError(f"{name} must be {limit}, got {value!r}.", field=name, value=value)
