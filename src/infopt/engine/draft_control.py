"""How many tokens to guess now: asked before each proposal, told after each step.

The engine lets a `DraftControl` call the drafter. This one asks for all that a drafter gives and
only takes the time; a control that chooses (`infopt.speculative.controller`) overrides it. Guesses
never change an output, so a control decides about time alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infopt.engine.clock import Clock

if TYPE_CHECKING:
    from infopt.engine.drafting import Drafter, DraftRequest, Guesses


@dataclass(frozen=True, slots=True)
class DraftedPass:
    """What became of the guesses of one sequence in one step.

    Attributes:
        seq_id: Whose.
        num_judged: Guesses that were looked at (those behind the end of an output are not).
        num_accepted: Of those, guesses kept.
        num_emitted: Tokens the pass gave.
    """

    seq_id: int
    num_judged: int
    num_accepted: int
    num_emitted: int


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A finished step, as far as speculation is concerned.

    Attributes:
        num_rows: Tokens computed, guesses apart.
        num_decodes: Of those, newest tokens of outputs.
        num_guesses: Guesses computed.
        seconds: Time of the step without proposing.
        draft_s: Time of proposing.
        passes: Sequences with guesses.
    """

    num_rows: int
    num_decodes: int
    num_guesses: int
    seconds: float
    draft_s: float
    passes: tuple[DraftedPass, ...] = ()

    @property
    def is_decode(self) -> bool:
        """Whether the step did nothing but decode."""
        return self.num_rows == self.num_decodes

    @property
    def num_tokens(self) -> int:
        """Tokens that its decodes gave."""
        return self.num_decodes + sum(p.num_emitted - 1 for p in self.passes)


class DraftControl:
    """Asks for every guess, and takes the time of proposing.

    Args:
        clock: Source of time.
    """

    def __init__(self, clock: Clock) -> None:
        """Start with nothing proposed."""
        self._clock = clock
        self._draft_s = 0.0

    def wants_drafts(self, num_running: int) -> bool:
        """Whether to ask at all in the coming step; asked once per step, before anything else."""
        del num_running
        return True

    def propose(
        self,
        drafter: Drafter,
        requests: Sequence[DraftRequest],
        num_other_rows: int = 0,
        num_waiting: int = 0,
    ) -> Sequence[Guesses]:
        """Return the guesses for each request, none where none are wanted.

        Args:
            drafter: Whom to ask.
            requests: Outputs that may be continued by guesses.
            num_other_rows: Tokens that running sequences compute in the step beside them.
            num_waiting: Sequences that wait for a place in the batch.
        """
        del num_other_rows, num_waiting
        return self._timed(drafter, requests)

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a finished step."""

    def forget(self, seq_id: int) -> None:
        """Drop what is remembered of an output that has ended."""

    def describe(self) -> dict[str, Any] | None:
        """Return decisions and what they rest on as plain data; None where nothing is decided."""
        return None

    def reset_counts(self) -> None:
        """Count anew; what was learned stays."""

    def take_draft_s(self) -> float:
        """Return the time of proposing since the last call, in seconds."""
        seconds, self._draft_s = self._draft_s, 0.0
        return seconds

    def _timed(self, drafter: Drafter, requests: Sequence[DraftRequest]) -> Sequence[Guesses]:
        start_s = self._clock.now()
        drafts = drafter.propose(requests) if requests else []
        self._draft_s += self._clock.now() - start_s
        return drafts
