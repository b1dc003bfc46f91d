"""Counts the tokens of an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from infopt.serve.deltas import Delta, EnergyUse


class UsageCounter:
    """Adds up deltas: every token once, every prompt once however many answers it has.

    Args:
        num_prompt_tokens: Of all prompts together.
        describe_energy: Makes the ``energy`` object of what the prompts used; None leaves it out.
        route: The ``route`` object; None leaves it out.
    """

    def __init__(
        self,
        num_prompt_tokens: int,
        describe_energy: Callable[[Iterable[EnergyUse]], dict[str, Any]] | None = None,
        route: dict[str, Any] | None = None,
    ) -> None:
        """Start at no output."""
        self._num_prompt_tokens = num_prompt_tokens
        self._describe_energy, self._route = describe_energy, route
        self._energy: dict[int, EnergyUse] = {}
        self._num_completion_tokens = 0
        self._num_cached: dict[int, int] = {}

    def add(self, delta: Delta) -> None:
        """Count a delta."""
        self._num_completion_tokens += len(delta.token_ids)
        self._num_cached[delta.prompt_index] = delta.num_cached_tokens
        if delta.energy is not None:
            self._energy[delta.prompt_index] = delta.energy

    def to_dict(self) -> dict[str, Any]:
        """Return the ``usage`` object."""
        usage: dict[str, Any] = {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self._num_completion_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._num_cached.values())},
        }
        if self._describe_energy is not None:
            usage["energy"] = self._describe_energy(self._energy.values())
        if self._route is not None:
            usage["route"] = self._route
        return usage
