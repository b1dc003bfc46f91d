"""Prompt lookup: the last few tokens, found earlier in prompt or output, say what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infopt.engine.drafting import Drafter, DraftTarget
from infopt.errors import ConfigError
from infopt.speculative.config import DRAFTERS, MAX_DRAFT_TOKENS, check_count
from infopt.speculative.drafters.per_output import PerOutput, copy_from


@DRAFTERS.register("ngram")
@dataclass(frozen=True, slots=True)
class NgramOptions:
    """Options of ``{"method": "ngram"}``.

    Attributes:
        num_speculative_tokens: Most guesses per step.
        prompt_lookup_max: Longest run of last tokens to look for; the longest found counts.
        prompt_lookup_min: Shortest. Short runs find guesses more often, and wrong ones, too.
    """

    num_speculative_tokens: int = 5
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 2

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: Names option, value and range.
        """
        check_count("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFT_TOKENS)
        check_count("prompt_lookup_max", self.prompt_lookup_max, 1, 64)
        check_count("prompt_lookup_min", self.prompt_lookup_min, 1, 64)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"speculative: prompt_lookup_min={self.prompt_lookup_min} is above "
                f"prompt_lookup_max={self.prompt_lookup_max}.",
                field="speculative.prompt_lookup_min",
                value=self.prompt_lookup_min,
                remedy="Lower one or raise the other.",
            )

    def build(self, target: DraftTarget | None = None) -> Drafter:
        """Return the drafter, which looks in the text alone."""
        del target
        sizes = range(self.prompt_lookup_max, self.prompt_lookup_min - 1, -1)
        return PerOutput(self.num_speculative_tokens, lambda: NgramIndex(sizes))


class NgramIndex:
    """Where each run of tokens ended last.

    Args:
        sizes: Lengths of runs, the preferred first.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        """Start with an empty text."""
        self._ends: dict[int, dict[tuple[int, ...], int]] = {size: {} for size in sizes}
        self._num_indexed = 0

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Return what followed the latest earlier occurrence of the longest known last run."""
        self._index(token_ids)
        for size, ends in self._ends.items():
            if size < len(token_ids):
                end = ends.get(tuple(token_ids[-size:]))
                if end is not None:
                    return copy_from(token_ids, end, max_tokens)
        return []

    def _index(self, token_ids: Sequence[int]) -> None:
        """Take in the runs that something follows: all but the last."""
        for end in range(self._num_indexed + 1, len(token_ids)):
            for size, ends in self._ends.items():
                if size <= end:
                    ends[tuple(token_ids[end - size : end])] = end
        self._num_indexed = max(len(token_ids) - 1, 0)
