"""Which rows of a step give tokens, and what became of drafted ones.

A drafted row is computed as if every guess before it were right. The tokens of a sequence are
chosen one after the other from its rows, each exactly as without guesses: same logits, penalties,
constraint and random number. As long as the token chosen equals the guess, the next row is the row
of the next token; at the first difference the rows behind it are worthless. For guesses without
probabilities (a draft distribution with all its mass on one token) this is rejection sampling: the
guess is kept with the probability that the model gives it, and the token in its place follows the
model's distribution without it. It is stronger, too, since samples stay those of their seeds.

Guesses that were drawn come with what they were drawn from, and `infopt.engine.rejection` keeps
them more often than that. A token chosen in place of a refused guess never equals it, so the rule
of the rows is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from infopt.engine.draft_control import DraftedPass, StepOutcome
from infopt.engine.rejection import Guess
from infopt.engine.sequence import Sequence
from infopt.engine.step_plan import StepPlan
from infopt.outputs import FinishReason


@dataclass(slots=True)
class StepTokens:
    """Tokens that one step gives.

    Attributes:
        drafts: Guesses of the sequences that have some.
        new: Tokens chosen so far, by sequence, in order.
        ending: Sequences that ended with their newest token.
        laws: What the guesses of sequences were drawn from, where they were.
    """

    drafts: dict[Sequence, tuple[int, ...]] = field(default_factory=dict)
    new: dict[Sequence, list[int]] = field(default_factory=dict)
    ending: dict[Sequence, FinishReason] = field(default_factory=dict)
    laws: dict[Sequence, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: StepPlan) -> StepTokens:
        """Start a step."""
        return cls(
            drafts={item.sequence: item.draft for item in plan.scheduled if item.draft},
            laws={item.sequence: item.laws for item in plan.scheduled if item.laws is not None},
        )

    def guess_of(self, sequence: Sequence) -> Guess | None:
        """Return the guess for the next token, if one was drawn."""
        laws, place = self.laws.get(sequence), len(self.new.get(sequence, ()))
        if laws is None or place >= len(laws):
            return None
        return Guess(self.drafts[sequence][place], laws[place])

    def is_due(self, sequence: Sequence, position: int) -> bool:
        """Whether the row at a position gives the next token: it has read right tokens alone."""
        if position + 1 != len(sequence.token_ids) or sequence in self.ending:
            return False
        new = self.new.get(sequence, ())
        return self._num_right(sequence) == len(new)

    def num_kept(self) -> dict[Sequence, int]:
        """Return, per sequence, how many guesses belong to the output and have keys and values.

        The newest token has none yet. Guesses behind the end of an output do not belong to it.
        """
        return {sequence: len(new) - 1 for sequence, new in self.new.items()}

    def outcome(self, plan: StepPlan, total_s: float, draft_s: float) -> StepOutcome:
        """Describe a finished step.

        Args:
            plan: What was computed.
            total_s: Time of the step in seconds.
            draft_s: Time of proposing in it.
        """
        items = plan.scheduled
        num_guesses = sum(len(item.draft) for item in items)
        return StepOutcome(
            num_rows=plan.num_tokens + plan.num_padding_tokens - num_guesses,
            num_decodes=sum(item.is_decode for item in items),
            num_guesses=num_guesses,
            seconds=total_s - draft_s,
            draft_s=draft_s,
            passes=tuple(
                self._pass(item.sequence, len(item.draft))
                for item in items
                if item.draft and item.sequence in self.new
            ),
        )

    def _pass(self, sequence: Sequence, num_guesses: int) -> DraftedPass:
        num_right, num_new = self._num_right(sequence), len(self.new[sequence])
        # Where a right guess ends the output, nothing looks at those behind it.
        num_judged = num_right if num_right == num_new else num_guesses
        return DraftedPass(sequence.seq_id, num_judged, num_right, num_new)

    def _num_right(self, sequence: Sequence) -> int:
        """Return how many of the new tokens were guessed."""
        new, draft = self.new.get(sequence, []), self.drafts.get(sequence, ())
        if new and (len(new) > len(draft) or new[-1] != draft[len(new) - 1]):
            return len(new) - 1  # rows behind a wrong guess are never due, so the others were right
        return len(new)


def wanted_rows(plan: StepPlan) -> tuple[list[int], list[tuple[Sequence, int]]]:
    """Return the flat rows whose logits are needed, and whose token and position they are.

    Rows of given tokens (prompt log-probabilities) lie before the end of the prompt; the others
    are the row of the newest token and those of guesses, in order.
    """
    rows: list[int] = []
    wanted: list[tuple[Sequence, int]] = []
    offset = 0
    for item in plan.scheduled:
        sequence, end = item.sequence, item.start + item.num_tokens
        first = max(item.start, sequence.first_scored - 1)
        positions = list(range(first, min(end, sequence.num_prompt_tokens - 1)))
        if item.is_last_chunk and sequence.max_tokens:
            positions.extend(range(end - len(item.draft) - 1, end))
        rows.extend(offset + position - item.start for position in positions)
        wanted.extend((sequence, position) for position in positions)
        offset += item.num_tokens
    return rows, wanted
