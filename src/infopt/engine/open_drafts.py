"""Guesses that a model makes one after the other, chosen as the sampler will choose tokens.

What the sampler does to a row of the target (bias, penalties, form, filters, temperature) is done
to the drafter's row as well, counting the guesses before it: a guess that the target could never
choose is a wasted row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from infopt.engine.drafting import Draft, DraftRequest
from infopt.engine.rejection import GUESS_STREAM
from infopt.engine.sampler import (
    SamplingRow,
    changes_logits,
    probabilities,
    process_logits,
    uniform,
)
from infopt.ops.sampling import pick


class OpenDraft:
    """Guesses for one output so far.

    Args:
        request: The output.
        eos_token_ids: End-of-sequence tokens of the model.
        is_coupled: Draw a guess with the random number that the token in its place is drawn with,
            and let it be kept if they are equal: samples stay those of their seeds.

    Attributes:
        request: The output.
        token_ids: Guesses so far.
        is_open: Whether another one is wanted.
    """

    def __init__(
        self, request: DraftRequest, eos_token_ids: tuple[int, ...], is_coupled: bool
    ) -> None:
        """Start without a guess."""
        assert request.sequence is not None
        self.request, self.token_ids, self.is_open = request, [], request.max_tokens > 0
        self._laws: list[torch.Tensor] = []
        self._sequence, self._is_coupled = request.sequence, is_coupled
        self._row = SamplingRow.of(request.sequence, eos_token_ids)
        params = self._row.params
        self._ends = set(params.stop_token_ids)
        self._ends |= set() if params.ignore_eos else set(eos_token_ids)
        self._num_moved = 0

    @property
    def row(self) -> SamplingRow:
        """What the sampler must know of the next guess."""
        return self._row

    @property
    def is_coupled(self) -> bool:
        """Whether guesses are drawn with the numbers of the tokens in their place."""
        return self._is_coupled

    def add(self, token_id: int, law: torch.Tensor | None) -> None:
        """Add a guess, and close where nothing can follow it."""
        self.token_ids.append(token_id)
        if law is not None:
            self._laws.append(law)
        if len(self.token_ids) == self.request.max_tokens or token_id in self._ends:
            self.is_open = False
        if self.is_open:
            self._move_on(token_id)

    def close(self) -> None:
        """Want no more guesses, and take back what they did to the output's form."""
        self.is_open = False
        if self._num_moved and self._sequence.constraint is not None:
            self._sequence.constraint.rollback(self._num_moved)
        self._num_moved = 0

    def result(self) -> Draft:
        """Return the guesses."""
        return Draft(self.token_ids, torch.stack(self._laws) if self._laws else None)

    def _move_on(self, token_id: int) -> None:
        counts = dict(self._row.output_counts)
        counts[token_id] = counts.get(token_id, 0) + 1
        self._row = dataclasses.replace(
            self._row,
            num_output_tokens=self._row.num_output_tokens + 1,
            output_counts=counts,
            allowed=self._allowed_after(token_id),
        )

    def _allowed_after(self, token_id: int) -> torch.Tensor | None:
        constraint = self._sequence.constraint
        if constraint is None:
            return None
        if not constraint.accept(token_id):
            self.is_open = False
            return None
        self._num_moved += 1
        if constraint.is_terminated:
            self.is_open = False
            return None
        return constraint.allowed()


@contextmanager
def open_drafts(
    requests: Sequence[DraftRequest], eos_token_ids: tuple[int, ...], is_coupled: bool
) -> Iterator[list[OpenDraft]]:
    """Open a draft per request; forms are back where they were when the block ends."""
    drafts = [OpenDraft(request, eos_token_ids, is_coupled) for request in requests]
    try:
        yield drafts
    finally:
        for draft in drafts:
            draft.close()


class DraftVocabulary:
    """How the ids of a drafter stand for those of the model.

    Args:
        size: Ids of the model.
        num_real: Of those, tokens; the rest is padding.
        ids: The model's id of each of the drafter's, ascending, int64 ``(num_ids,)``; None where
            they are the same.
    """

    def __init__(self, size: int, num_real: int, ids: torch.Tensor | None = None) -> None:
        """Keep the numbers."""
        self.size, self.num_real, self.ids = size, num_real, ids

    def widen(self, logits: torch.Tensor) -> torch.Tensor:
        """Return rows over the model's ids, minus infinity where the drafter knows no token.

        Rows that are as long already are changed in place.
        """
        if self.ids is None and logits.shape[1] == self.size:
            logits[:, self.num_real :] = float("-inf")
            return logits
        wide = logits.new_full((logits.shape[0], self.size), float("-inf"))
        if self.ids is None:
            wide[:, : self.num_real] = logits[:, : self.num_real]
        else:
            wide[:, self.ids] = logits
        return wide

    def spread(self, weights: torch.Tensor) -> torch.Tensor:
        """Return weights over the model's ids, zero where the drafter knows no token."""
        assert self.ids is not None
        wide = weights.new_zeros((weights.shape[0], self.size))
        wide[:, self.ids] = weights
        return wide


def draft_rounds(
    drafts: list[OpenDraft],
    logits: torch.Tensor,
    step: Callable[[list[int]], torch.Tensor],
    vocabulary: DraftVocabulary,
) -> None:
    """Add guesses until no draft is open.

    Args:
        drafts: Changed in place.
        logits: The drafter's, float32 ``(num_drafts, num_ids)``: what follows each text.
        step: Takes the places of the drafts that go on; returns what follows their newest guess.
        vocabulary: What the drafter's ids mean.
    """
    places = list(range(len(drafts)))
    while places:
        _extend([drafts[i] for i in places], logits, vocabulary)
        places = [i for i in places if drafts[i].is_open]
        if places:
            logits = step(places)


def _extend(drafts: list[OpenDraft], logits: torch.Tensor, vocabulary: DraftVocabulary) -> None:
    """Add a guess to each draft, or close it where its row allows none."""
    rows, ids = [draft.row for draft in drafts], vocabulary.ids
    if any(changes_logits(row) for row in rows) or ids is None:
        logits, ids = process_logits(vocabulary.widen(logits), rows), None
    best, places = (x.tolist() for x in logits.max(dim=-1))  # the first of equals
    drawn = [
        i for i, row in enumerate(rows) if not row.params.is_greedy and best[i] > float("-inf")
    ]
    weights = _weights(logits, rows, drawn)
    for i, place in zip(drawn, _pick(weights, drafts, drawn), strict=True):
        places[i] = place
    tokens = places if ids is None else ids[torch.tensor(places, device=ids.device)].tolist()
    laws = weights.float() if ids is None else vocabulary.spread(weights.float())
    law_of = dict(zip(drawn, laws, strict=True))
    for i, draft in enumerate(drafts):
        if best[i] > float("-inf"):
            draft.add(tokens[i], None if draft.is_coupled else law_of.get(i))
        else:
            draft.is_open = False


def _weights(logits: torch.Tensor, rows: list[SamplingRow], drawn: list[int]) -> torch.Tensor:
    """Return what some rows draw from, float64 ``(num_drawn, num_ids)``."""
    if not drawn:
        return logits.new_zeros((0, logits.shape[1]), dtype=torch.float64)
    return probabilities(logits[drawn], [rows[i] for i in drawn])


def _pick(weights: torch.Tensor, drafts: list[OpenDraft], drawn: list[int]) -> list[int]:
    return pick(weights, [_number(drafts[i]) for i in drawn]) if drawn else []


def _number(draft: OpenDraft) -> float:
    stream = b"" if draft.is_coupled else GUESS_STREAM
    return uniform(draft.row.seed, draft.row.num_output_tokens, stream)
