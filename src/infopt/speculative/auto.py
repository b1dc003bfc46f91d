"""Options of ``{"method": "auto"}``: who guesses, and how much of the time tries may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infopt.engine.clock import Clock
from infopt.engine.draft_control import DraftControl
from infopt.engine.drafting import Drafter, DraftTarget
from infopt.errors import ConfigError
from infopt.speculative.config import DRAFTERS, read_options
from infopt.speculative.controller import AutoControl

MAX_PROBE_SHARE = 0.5


@DRAFTERS.register("auto")
@dataclass(frozen=True, slots=True)
class AutoOptions:
    """Options of ``{"method": "auto"}``.

    Attributes:
        drafter: The method that guesses, and its options.
        probe_share: Share of the time that may go into guesses which are not expected to pay.
    """

    drafter: Mapping[str, Any] = field(
        default_factory=lambda: {"method": "suffix", "num_speculative_tokens": 16}
    )
    probe_share: float = 0.02

    def __post_init__(self) -> None:
        """Check every value, those of the drafter as well.

        Raises:
            ConfigError: Names option, value and range.
        """
        share = self.probe_share
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not 0 <= share <= MAX_PROBE_SHARE:
            raise ConfigError(
                f"speculative: probe_share must be from 0 to {MAX_PROBE_SHARE}, got {share!r}.",
                field="speculative.probe_share",
                value=share,
            )
        if not isinstance(self.drafter, Mapping) or self.drafter.get("method") == "auto":
            raise ConfigError(
                f"speculative: drafter must name a method that guesses, got {self.drafter!r}.",
                field="speculative.drafter",
                value=self.drafter,
                remedy="For example {'method': 'ngram', 'num_speculative_tokens': 8}.",
            )
        read_options(self.drafter)

    def build(self, target: DraftTarget | None = None) -> Drafter:
        """Return the drafter."""
        return read_options(self.drafter).build(target)

    def make_control(self, clock: Clock) -> DraftControl:
        """Return what chooses lengths."""
        most = read_options(self.drafter).num_speculative_tokens
        return AutoControl(clock, most, self.probe_share)
