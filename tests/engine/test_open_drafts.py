"""Guesses are chosen as the sampler will choose tokens, and forms are left as they were."""

from __future__ import annotations

import torch

from infopt import SamplingParams
from infopt.cache.manager import SequenceCache
from infopt.engine.drafting import DraftRequest
from infopt.engine.open_drafts import DraftVocabulary, draft_rounds, open_drafts
from infopt.engine.sequence import Sequence
from infopt.outputs import RequestMetrics

SIZE = 12
SAME = DraftVocabulary(SIZE, SIZE)


class Form:
    """Allows even ids only, and ends with id 10."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    @property
    def is_terminated(self) -> bool:
        return 10 in self.taken

    def allowed(self) -> torch.Tensor:
        return torch.arange(SIZE) % 2 == 0

    def accept(self, token_id: int) -> bool:
        self.taken.append(token_id)
        return token_id % 2 == 0

    def rollback(self, num_tokens: int) -> None:
        del self.taken[len(self.taken) - num_tokens :]


def sequence(params: SamplingParams, seed: int = 0, output: tuple[int, ...] = ()) -> Sequence:
    made = Sequence(
        seq_id=seed,
        request_id="a",
        index=0,
        token_ids=[1, 2],
        num_prompt_tokens=2,
        params=params,
        seed=seed,
        max_tokens=50,
        cache=SequenceCache([]),
        metrics=RequestMetrics(arrival_s=0.0),
    )
    for token in output:
        made.append(token)
    return made


def guess(
    sequences: list[Sequence],
    logits: torch.Tensor,
    count: int = 4,
    vocabulary: DraftVocabulary = SAME,
    *,
    is_coupled: bool = False,
    eos: tuple[int, ...] = (),
) -> list:
    """Let a drafter with the same logits everywhere guess."""
    requests = [DraftRequest(s.seq_id, s.token_ids, count, s) for s in sequences]
    with open_drafts(requests, eos, is_coupled) as drafts:
        rows = logits.expand(len(drafts), -1)
        draft_rounds(drafts, rows, lambda places: rows[: len(places)], vocabulary)
        return [draft.result() for draft in drafts]


DESCENDING = -torch.arange(SIZE, dtype=torch.float32)


def test_penalties_count_the_guesses_before() -> None:
    """Logits 0, -1, ... and a penalty of 1.5 per occurrence: 0 1 0 2 as the target does."""
    params = SamplingParams(temperature=0, frequency_penalty=1.5)
    (draft,) = guess([sequence(params)], DESCENDING)
    assert draft.token_ids == [0, 1, 0, 2]
    assert draft.laws is None
    (draft,) = guess([sequence(params, output=(0, 0))], DESCENDING)
    assert draft.token_ids == [1, 2, 1, 0]


def test_forms_move_on_and_back() -> None:
    params = SamplingParams(temperature=0, logit_bias={0: -50, 2: -50})
    made = sequence(params)
    made.constraint = form = Form()
    (draft,) = guess([made], DESCENDING)
    assert draft.token_ids == [4, 4, 4, 4]
    assert form.taken == []
    made.params = params.replace(logit_bias={10: 90.0})
    (draft,) = guess([made], DESCENDING)
    assert draft.token_ids == [10]
    assert form.taken == []


def test_nothing_follows_an_end() -> None:
    params = SamplingParams(temperature=0)
    assert guess([sequence(params)], DESCENDING, eos=(0,))[0].token_ids == [0]
    assert (
        guess([sequence(params.replace(ignore_eos=True))], DESCENDING, eos=(0,))[0].token_ids
        == [0] * 4
    )
    stop = params.replace(stop_token_ids=[0])
    assert guess([sequence(stop)], DESCENDING)[0].token_ids == [0]
    held = stop.replace(min_tokens=2)
    assert guess([sequence(held)], DESCENDING)[0].token_ids == [1, 1, 0]


def test_laws_are_what_guesses_were_drawn_from() -> None:
    params = SamplingParams(temperature=2.0, top_k=3, logit_bias={7: 20.0})
    drafts = guess([sequence(params, seed) for seed in range(300)], DESCENDING, 2)
    laws = torch.cat([d.laws for d in drafts])
    assert laws.shape == (600, SIZE)
    assert ((laws > 0).sum(dim=1) == 3).all()
    counts = torch.bincount(torch.tensor([t for d in drafts for t in d.token_ids]), minlength=SIZE)
    law = laws[0].double() / laws[0].double().sum()
    torch.testing.assert_close(counts.double() / 600, law, atol=0.07, rtol=0)
    assert (laws == laws[0]).all()


def test_coupled_guesses_have_no_law() -> None:
    params = SamplingParams(temperature=1.0)
    (draft,) = guess([sequence(params, 5)], DESCENDING * 0.1, is_coupled=True)
    assert draft.laws is None
    assert len(draft.token_ids) == 4


def test_fewer_ids_stand_for_those_of_the_model() -> None:
    """Over ids 1, 4, 9 alone; with a bias rows are widened, and give the same."""
    ids = torch.tensor([1, 4, 9])
    vocabulary, logits = DraftVocabulary(SIZE, SIZE, ids), torch.tensor([0.0, 2.0, 1.0])
    params = SamplingParams(temperature=0)
    (draft,) = guess([sequence(params)], logits, 2, vocabulary)
    assert draft.token_ids == [4, 4]
    biased = params.replace(logit_bias={9: 5.0, 11: 100.0})
    assert guess([sequence(biased)], logits, 2, vocabulary)[0].token_ids == [9, 9]
    found = []
    for extra in ({}, {"logit_bias": {11: 1.0}}):  # the second does nothing, on the other path
        sampled = SamplingParams(temperature=1.0, top_p=0.9, **extra)
        (draft,) = guess([sequence(sampled, 3)], logits, 3, vocabulary)
        assert draft.laws.shape == (3, SIZE)
        assert set(draft.laws[0].nonzero().squeeze(1).tolist()) == {4, 9}
        found.append(draft)
    assert found[0].token_ids == found[1].token_ids
    torch.testing.assert_close(found[0].laws, found[1].laws)


def test_a_row_that_allows_nothing_ends_the_draft() -> None:
    made = sequence(SamplingParams(temperature=1.0))
    made.constraint = Form()
    vocabulary = DraftVocabulary(SIZE, SIZE, torch.tensor([1, 3]))
    (draft,) = guess([made], torch.tensor([0.0, 1.0]), 3, vocabulary)
    assert len(draft) == 0
    assert draft.laws is None
