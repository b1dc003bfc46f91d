"""What the coming step is expected to take and to bring, learned from the steps so far."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infopt.engine.draft_control import StepOutcome
from infopt.speculative.acceptance import Acceptance
from infopt.speculative.costs import DraftCosts, StepCosts
from infopt.speculative.planning import LengthPlan, Scene, plan_lengths

_REFRESH_STEPS = 128
"""Steps with guesses after which one without is made;"""
_FIRST_REFRESH = 16
"""at first sooner: after this many for each one without."""
_FIRST_GUESSES = 4
"""Most guesses in a step at first; later twice as many as ever."""


class Forecast:
    """Times and shares, and the lengths that follow from them.

    Args:
        max_tokens: Longest draft.

    Attributes:
        acceptance: Shares of guesses given and kept.
        steps: Times of steps.
        drafts: Times of proposals.
    """

    def __init__(self, max_tokens: int) -> None:
        """Know nothing."""
        self.acceptance = Acceptance(max_tokens)
        self.steps, self.drafts = StepCosts(), DraftCosts()
        self._since_plain: Counter[int] = Counter()

    def add(self, outcome: StepOutcome) -> None:
        """Learn from a finished step."""
        rows, guesses = outcome.num_rows, outcome.num_guesses
        self.steps.add(rows, guesses, outcome.seconds)
        for drafted in outcome.passes:
            self.acceptance.note_kept(drafted)
        self._since_plain[rows] = self._since_plain[rows] + 1 if guesses else 0

    def scene(self, num_outputs: int, num_other_rows: int) -> Scene:
        """Describe a step without guesses.

        Args:
            num_outputs: Outputs that may be continued by guesses.
            num_other_rows: Other tokens in it.
        """
        num_rows = num_outputs + num_other_rows
        # A sequence that makes its last token is a row as well.
        num_tokens = num_rows if num_other_rows <= num_outputs else num_outputs
        token_s = self.steps.plain_s(num_tokens) / num_tokens
        return Scene(num_rows, num_tokens, self.steps.plain_s(num_rows), token_s)

    def needs_plain(self, num_rows: int) -> bool:
        """Whether what a step takes without guesses is unknown, or may have changed."""
        num_plain = self.steps.num_plain(num_rows)  # the first ones are slow, so soon again
        most = min(_REFRESH_STEPS, _FIRST_REFRESH * num_plain)
        return self._since_plain[num_rows] >= most

    def plan(
        self,
        scene: Scene,
        seq_ids: Sequence[int],
        limits: Sequence[int],
        room_s: NDArray[np.float64] | None,
        sunk_s: float | None = None,
    ) -> LengthPlan:
        """Return lengths to ask for, or to verify where ``sunk_s`` was spent on proposing."""
        is_found = sunk_s is not None
        if is_found:
            scene = dataclasses.replace(scene, plain_s=scene.plain_s + sunk_s)
        most = max(_FIRST_GUESSES, 2 * self.steps.most_guesses(scene.num_rows))
        most = int(min(most, sum(limits)))
        return plan_lengths(
            scene,
            self.acceptance.survival(seq_ids),
            None if is_found else self.acceptance.availability(seq_ids),
            np.array(limits),
            step_s=self.steps.table(scene.num_rows, most),
            draft_s=(lambda *_: sunk_s) if is_found else self.drafts.seconds,
            max_guesses=most,
            room_s=room_s,
        )

    def extra_s(self, num_rows: int, num_guesses: int, more_than: int = 0) -> float:
        """Return the seconds that guesses take, beside a step with ``more_than`` of them."""
        table = self.steps.table(num_rows, num_guesses)
        return float(table[num_guesses] - table[more_than])

    def describe(self) -> dict[str, Any]:
        """Return what was learned as plain data."""
        return {
            "kept_shares": list(self.acceptance.kept_shares()),
            "given_shares": self.acceptance.given_shares(),
            "draft_s_per_output": self.drafts.per_output_s,
            "draft_s_per_position": self.drafts.per_position_s,
            "step_s": self.steps.describe(),
        }
