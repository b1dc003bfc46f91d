"""What `infopt.speculative.controller` decided for a step, and what came of such steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from infopt.engine.draft_control import StepOutcome
from infopt.speculative.planning import LengthPlan, Scene

Decision = Literal["learn", "off", "empty", "on", "probe"]
"""Without guesses to learn what that takes; without because none pay; the drafter had none; with
guesses that are expected to pay; with a try of one output that is not."""

DECISIONS: tuple[Decision, ...] = get_args(Decision)


@dataclass(slots=True)
class Proposal:
    """What was decided for the coming step.

    Attributes:
        decision: In a word.
        scene: The step without guesses.
        seq_ids: Outputs that may be continued by guesses.
        is_patient: Whether others may be late by so much only.
        room_s: Seconds by which each may still be late, once that is asked for.
        plan: Lengths expected to pay; None where nothing was planned.
        probed: Output that is tried although that is not expected to pay.
        probe_s: Expected time of its guess.
        num_wait: Steps until a try may take what it takes.
    """

    decision: Decision
    scene: Scene
    seq_ids: Sequence[int]
    is_patient: bool = False
    room_s: NDArray[np.float64] | None = None
    plan: LengthPlan | None = None
    probed: int | None = None
    probe_s: float = 0.0
    num_wait: int = 0


@dataclass(slots=True)
class Gains:
    """Expected and real time of decode steps with chosen guesses, beside that without."""

    planned_s: float = 0.0
    planned_plain_s: float = 0.0
    real_s: float = 0.0
    real_plain_s: float = 0.0

    def add(self, plan: LengthPlan, outcome: StepOutcome, token_s: float) -> None:
        """Take in a step: what was expected of it, what came of it, what a token is worth."""
        self.planned_s += plan.seconds
        self.planned_plain_s += plan.tokens * token_s
        self.real_s += outcome.seconds + outcome.draft_s
        self.real_plain_s += outcome.num_tokens * token_s

    def ratio(self, kind: Literal["planned", "real"]) -> float | None:
        """Return time without guesses over time with them."""
        seconds = getattr(self, f"{kind}_s")
        return getattr(self, f"{kind}_plain_s") / seconds if seconds else None
