"""Counters of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

from infopt.engine.draft_control import StepOutcome


@dataclass(slots=True)
class StepTimes:
    """Times of the steps that only decode; others do more than verifying.

    Attributes:
        num_steps: Steps.
        num_tokens: Tokens they gave.
        step_s: Their time without proposing, in seconds.
        draft_s: Time of proposing before them.
    """

    num_steps: int = 0
    num_tokens: int = 0
    step_s: float = 0.0
    draft_s: float = 0.0

    def add(self, outcome: StepOutcome) -> None:
        """Count a step."""
        self.num_steps += 1
        self.num_tokens += outcome.num_tokens
        self.step_s += outcome.seconds
        self.draft_s += outcome.draft_s

    @property
    def mean_step_s(self) -> float | None:
        """Mean time of a step without proposing."""
        return self.step_s / self.num_steps if self.num_steps else None


@dataclass(slots=True)
class DraftStats:
    """What became of drafted tokens since the start.

    A pass is one sequence in one step of the model. Guesses behind a right one that ended its
    output are not counted as proposed: nothing looked at them.

    Attributes:
        num_drafted_passes: Passes that verified at least one guess.
        num_plain_passes: Decoding passes without a guess; each gives one token.
        num_emitted: Tokens that drafted passes gave: guesses kept, and the token after them.
        proposed: Guesses verified, by position in the draft.
        accepted: Of those, guesses kept.
        num_rejections: Passes that met a wrong guess; they looked at nothing behind it.
        draft_s: Time of proposing, in seconds.
        plain: Decode steps without a guess.
        drafted: Decode steps with one or more.
    """

    num_drafted_passes: int = 0
    num_plain_passes: int = 0
    num_emitted: int = 0
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    num_rejections: int = 0
    draft_s: float = 0.0
    plain: StepTimes = field(default_factory=StepTimes)
    drafted: StepTimes = field(default_factory=StepTimes)

    def add_step(self, outcome: StepOutcome) -> None:
        """Count a finished step."""
        self.draft_s += outcome.draft_s
        self.num_plain_passes += outcome.num_decodes - len(outcome.passes)
        for drafted in outcome.passes:
            self.add(drafted.num_judged, drafted.num_accepted, drafted.num_emitted)
        if outcome.is_decode:
            (self.drafted if outcome.num_guesses else self.plain).add(outcome)

    def add(self, num_proposed: int, num_accepted: int, num_emitted: int) -> None:
        """Count one drafted pass."""
        self.num_drafted_passes += 1
        self.num_emitted += num_emitted
        self.num_rejections += num_accepted < num_proposed
        missing = num_proposed - len(self.proposed)
        self.proposed += [0] * missing
        self.accepted += [0] * missing
        for position in range(num_proposed):
            self.proposed[position] += 1
            self.accepted[position] += position < num_accepted

    @property
    def num_proposed(self) -> int:
        """Guesses verified."""
        return sum(self.proposed)

    @property
    def num_accepted(self) -> int:
        """Guesses kept."""
        return sum(self.accepted)

    @property
    def acceptance_rate(self) -> float | None:
        """Guesses kept over guesses verified."""
        return self.num_accepted / self.num_proposed if self.num_proposed else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """The same by position: a guess counts as kept only if those before it were."""
        return [kept / made for kept, made in zip(self.accepted, self.proposed, strict=True)]

    @property
    def alpha(self) -> float | None:
        """Share of guesses kept among those whose predecessors were (Leviathan's alpha)."""
        looked_at = self.num_accepted + self.num_rejections
        return self.num_accepted / looked_at if looked_at else None

    @property
    def tokens_per_drafted_pass(self) -> float | None:
        """Tokens given by a pass that verified guesses."""
        return self.num_emitted / self.num_drafted_passes if self.num_drafted_passes else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens given by a decoding pass, with guesses or without."""
        passes = self.num_drafted_passes + self.num_plain_passes
        return (self.num_emitted + self.num_plain_passes) / passes if passes else None

    @property
    def mean_length(self) -> float | None:
        """Guesses per pass that verified some."""
        return self.num_proposed / self.num_drafted_passes if self.num_drafted_passes else None

    @property
    def draft_cost(self) -> float | None:
        """Time of proposing one guess more over that of a plain decode step (Leviathan's c)."""
        plain_s, drafted, length = self.plain.mean_step_s, self.drafted, self.mean_length
        if not plain_s or not drafted.num_steps or not length:
            return None
        return drafted.draft_s / drafted.num_steps / length / plain_s

    @property
    def verify_cost(self) -> float | None:
        """Time of a decode step with guesses over that of one without, both without proposing."""
        plain_s, drafted_s = self.plain.mean_step_s, self.drafted.mean_step_s
        return drafted_s / plain_s if plain_s and drafted_s else None

    @property
    def passes_by_length(self) -> dict[int, int]:
        """Drafted passes by how many guesses they verified."""
        pairs = zip_longest(self.proposed, self.proposed[1:], fillvalue=0)
        ending = {length: here - more for length, (here, more) in enumerate(pairs, start=1)}
        return {length: count for length, count in ending.items() if count}
