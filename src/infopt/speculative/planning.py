"""How many guesses each output should get in a step, given what they bring and what they take.

The j-th guess of an output brings a token with the probability that it and those before it are
kept. Guesses are taken in the order of that probability, over all outputs, and the best stop is
where tokens per second are highest: (outputs + expected tokens) / seconds of the step, as in
`infopt.speculative.theory.speedup` with lengths that differ between outputs and measured seconds in
place of cost ratios. Since time depends on the number of guesses alone, and of equally many guesses
the most probable bring most, no other choice is better.

A step that also reads prompts is not compared by tokens per second, which its prompts would
distort: there a guess has to bring more than it takes, a token being worth the time that decoding
takes for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_POSITIONS = np.arange(4096)

MARGIN = 0.02
"""Predicted gain below which nothing is guessed: of many lengths the best one is the one whose gain
is overestimated most, and smaller gains drown in that."""


_TRUST = 0.5
"""Share of the tokens expected of an output's own guesses that others may delay it for."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The step that is about to be computed, without guesses.

    Attributes:
        num_rows: Tokens to compute.
        num_tokens: Tokens it gives: the outputs that decode.
        plain_s: Its time.
        token_s: What a token is worth: time of a decode step of these outputs over their number.
    """

    num_rows: int
    num_tokens: int
    plain_s: float
    token_s: float

    @property
    def is_decode(self) -> bool:
        """Whether it does nothing but decode."""
        return self.num_rows == self.num_tokens

    @property
    def step_s(self) -> float:
        """Time of a step that only decodes."""
        return self.token_s * self.num_tokens


@dataclass(frozen=True, slots=True)
class LengthPlan:
    """Lengths, and what is expected of them.

    Attributes:
        lengths: Guesses per output.
        tokens: Expected tokens of the step.
        seconds: Expected time, proposing included.
        speedup: Tokens per second over those without guesses.
        is_held_back: Whether others would be too late for any length that pays.
    """

    lengths: NDArray[np.int64]
    tokens: float
    seconds: float
    speedup: float
    is_held_back: bool = False


def plan_lengths(
    scene: Scene,
    survival: Floats,
    given: Floats | None,
    limits: NDArray[np.int64],
    *,
    step_s: Floats,
    draft_s: Callable[[Any, Any], Any],
    max_guesses: int,
    room_s: Floats | None = None,
) -> LengthPlan:
    """Return the best lengths; all 0 where no length gains ``MARGIN``.

    Args:
        scene: The step.
        survival: Probability that the first j guesses are kept, ``(outputs, longest)``.
        given: Probability that a drafter gives j guesses, same shape; None where it gave them.
        limits: Most guesses per output.
        step_s: Seconds of the step with 0, 1, ... guesses, up to ``max_guesses`` at least.
        draft_s: Seconds of proposing by outputs asked and longest draft.
        max_guesses: Most guesses in all.
        room_s: Seconds by which each output may be late, what its own guesses save apart; None does
            not ask.
    """
    outputs, positions = np.nonzero(_POSITIONS[: survival.shape[1]] < limits[:, None])
    likely = survival[outputs, positions]
    if len(limits) > 1:
        order = np.argsort(-likely, kind="stable")  # equal ones keep the order of positions
        outputs, positions, likely = outputs[order], positions[order], likely[order]
    if given is not None:
        present = given[outputs, positions]
        guesses, likely = np.cumsum(present), likely * present
    else:
        guesses = _POSITIONS[1 : len(likely) + 1]
    num_allowed = int(np.searchsorted(guesses, max_guesses, side="right"))
    outputs, positions, guesses = (a[:num_allowed] for a in (outputs, positions, guesses))
    tokens = scene.num_tokens + np.cumsum(likely[:num_allowed])
    seconds = _at(step_s, guesses) + draft_s(
        np.cumsum(positions == 0), np.maximum.accumulate(positions) + 1
    )
    gains = _gains(scene, tokens, seconds)
    num_patient = len(gains)
    if room_s is not None and num_patient:
        most_s = scene.plain_s + _least_room(scene, room_s, survival, given, limits)
        num_patient = int(np.searchsorted(seconds, most_s, side="right"))
    best = int(np.argmax(gains[:num_patient])) if num_patient else 0
    if not num_patient or gains[best] < 1 + MARGIN:
        nothing = np.zeros(len(limits), dtype=np.int64)
        is_held_back = bool((gains[num_patient:] >= 1 + MARGIN).any())
        return LengthPlan(nothing, scene.num_tokens, scene.plain_s, 1.0, is_held_back)
    lengths = np.bincount(outputs[: best + 1], minlength=len(limits))
    return LengthPlan(lengths, float(tokens[best]), float(seconds[best]), float(gains[best]))


def _least_room(
    scene: Scene,
    room_s: Floats,
    survival: Floats,
    given: Floats | None,
    limits: NDArray[np.int64],
) -> float:
    """Return the seconds that the step may take longer: until the first output is too late."""
    own = survival if given is None else survival * given
    kept = (own * (_POSITIONS[: own.shape[1]] < limits[:, None])).sum(axis=1)
    return float((room_s + _TRUST * kept * scene.step_s).min())


def _at(table: Floats, sizes: NDArray[Any]) -> Floats:
    """Return entries of a table, between them the line."""
    if sizes.dtype.kind == "i":
        return table[sizes]
    return np.interp(sizes, _POSITIONS[: len(table)], table)


def _gains(scene: Scene, tokens: Floats, seconds: Floats) -> Floats:
    """Return time without guesses for the same tokens, over the time."""
    if scene.is_decode:
        return tokens / seconds * (scene.plain_s / scene.num_tokens)
    value = (tokens - scene.num_tokens) * scene.token_s - (seconds - scene.plain_s)
    return 1 + value / (scene.num_tokens * scene.token_s)
