"""Sampling: order of the filters, exact kept sets, seeds, penalties, log-probabilities."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from infopt.engine import sampler
from infopt.engine.sampler import (
    LOGPROB_FLOOR,
    SamplingRow,
    derive_seed,
    position_logprobs,
    probabilities,
    process_logits,
    sample,
    uniform,
)
from infopt.ops import resolve_ops, sampling
from infopt.sampling_params import SamplingParams


@pytest.fixture(autouse=True, params=["reference", "auto"])
def _each_way_to_draw(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with the reference and with what this machine's engine gets."""
    ops = resolve_ops(request.param, torch.device("cpu"), torch.float32)
    drawing = functools.partial(sampler.sample, draw=ops.draw_tokens)
    monkeypatch.setitem(globals(), "sample", drawing)


def row(
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    *,
    seed: int = 0,
    stop_ids: tuple[int, ...] = (),
    **params: Any,
) -> SamplingRow:
    counts = {token: output.count(token) for token in output}
    return SamplingRow(SamplingParams(**params), seed, len(output), list(prompt), counts, stop_ids)


def log(*probs: float) -> torch.Tensor:
    return torch.tensor([probs]).log()


def draws(logits: torch.Tensor, count: int, **params: Any) -> list[int]:
    """Samples of one position under many seeds."""
    rows = [row(seed=seed, **params) for seed in range(count)]
    return sample(logits.expand(count, -1), rows)


def kept(logits: torch.Tensor, **params: Any) -> list[int]:
    return probabilities(logits, [row(**params)])[0].nonzero().squeeze(1).tolist()


# ------------------------------------------------------------------ greedy and ties


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_greedy_ties_go_to_the_lowest_id_beside_any_neighbour(top_p: float) -> None:
    """Pins: next to a random request, greedy became a tiny temperature and ties a coin toss."""
    logits = torch.tensor([[3.0, 3.0, 1.0]])
    assert sample(logits, [row(temperature=0, top_p=top_p)]) == [0]
    for seed in range(200):
        both = sample(logits.expand(2, -1), [row(temperature=0, top_p=top_p), row(seed=seed)])
        assert both[0] == 0


def test_top_k_keeps_exactly_k_of_tied_tokens() -> None:
    """Pins: top_k=1 kept all tied tokens and the random state picked one."""
    assert set(draws(torch.tensor([[2.0, 2.0, 1.0]]), 200, top_k=1)) == {0}
    assert kept(torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]]), top_k=2) == [1, 2]


# ------------------------------------------------------------------ filters


@pytest.mark.parametrize("top_k", [64, 65, 100_000, 0, -1])
def test_top_k_of_the_vocabulary_or_more_changes_nothing(top_k: int) -> None:
    """Pins: a top_k above the vocabulary crashed."""
    logits = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(probabilities(logits, [row(top_k=top_k)]), probabilities(logits, [row()]))


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_off_does_not_mean_no_candidate(top_k: int) -> None:
    """Pins: top_k=0 left no candidate, so that token 0 came out every time."""
    tokens = draws(torch.tensor([[0.0, 0, 0, 0, 0, 4.0]]), 200, top_k=top_k)
    assert tokens.count(5) > 140
    assert len(set(tokens)) > 1


def test_top_p_works_on_what_top_k_left() -> None:
    """Pins: without renormalising the set could be empty, or two code paths disagreed."""
    logits = log(0.5, 0.3, 0.15, 0.05)
    assert kept(logits, top_k=2, top_p=0.6) == [0]  # 0.5 / 0.8 = 0.625 >= 0.6
    assert kept(logits, top_k=2, top_p=0.63) == [0, 1]
    assert kept(logits, top_p=0.6) == [0, 1]


def test_min_p_acts_after_temperature() -> None:
    """Pins: before temperature min_p keeps another set of candidates."""
    logits = log(0.5, 0.3, 0.15, 0.05)
    assert kept(logits, temperature=2, min_p=0.5) == [0, 1, 2]
    probs = probabilities(logits, [row(temperature=2)])[0]
    assert probs.tolist() == pytest.approx([0.379, 0.294, 0.208, 0.120], abs=5e-4)
    assert kept(logits, temperature=1, min_p=0.5) == [0, 1]


@pytest.mark.parametrize("params", [{"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1}])
def test_the_likeliest_token_always_stays(params) -> None:
    assert kept(torch.tensor([[0.1, 0.3, 0.2]]), **params) == [1]


def reference_kept(logits: list[float], p: SamplingParams) -> list[int]:
    """The written order, slowly: temperature, min_p, top_k, top_p, each renormalised."""
    values = [x / p.temperature for x in logits]
    top = max(values)
    weights = [math.exp(x - top) for x in values]
    alive = [i for i, w in enumerate(weights) if w >= p.min_p * max(weights)]
    by_rank = sorted(alive, key=lambda i: (-weights[i], i))
    if p.top_k > 0:
        by_rank = by_rank[: p.top_k]
    total, mass, chosen = math.fsum(weights[i] for i in by_rank), 0.0, []
    for i in by_rank:
        chosen.append(i)
        mass += weights[i]
        if p.top_p < 1 and mass >= p.top_p * total:
            break
    return sorted(chosen)


@settings(max_examples=300, deadline=None)
@given(
    # Distances far above float32 error, with ties, so that the reference must agree exactly.
    logits=st.lists(st.integers(-6, 6).map(lambda i: i * 0.75), min_size=1, max_size=40),
    temperature=st.sampled_from([0.5, 1.0, 1.5, 4.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.11, 0.52]),
    top_k=st.integers(-1, 45),
    top_p=st.floats(0.05, 1.0),
)
def test_kept_sets_are_those_of_a_slow_reference(logits, temperature, min_p, top_k, top_p) -> None:
    params = {"temperature": temperature, "min_p": min_p, "top_k": top_k, "top_p": top_p}
    expected = reference_kept(logits, SamplingParams(**params))
    nearly = [
        reference_kept(logits, SamplingParams(**(params | {"top_p": min(top_p * f, 1.0)})))
        for f in (1 - 1e-5, 1 + 1e-5)
    ]
    if nearly[0] == nearly[1]:  # else float32 may decide either way
        assert kept(torch.tensor([logits]), **params) == expected


@pytest.mark.parametrize("vocab_size", [1023, 1024, 1025, 5000])
@pytest.mark.parametrize("top_p", [0.1, 0.2048, 0.5, 0.97])
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0])
def test_top_p_over_a_large_flat_vocabulary(
    monkeypatch, vocab_size: int, top_p: float, spread: float
) -> None:
    """The quick look at 1024 candidates and the full sort keep the same set."""
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(1)) * spread
    quick = kept(logits, top_p=top_p)
    monkeypatch.setattr(sampling, "_CANDIDATES", 10**9)
    assert quick == kept(logits, top_p=top_p)
    monkeypatch.setattr(sampling, "_CANDIDATES", 1)
    assert quick == kept(logits, top_p=top_p)
    mass = torch.softmax(logits, -1)[0].double()
    assert mass[quick].sum() >= top_p * (1 - 1e-6)
    if spread == 0.0:
        assert quick == list(range(math.ceil(top_p * vocab_size - 1e-6)))


def test_rounding_between_the_two_top_p_paths_does_not_keep_everything(monkeypatch) -> None:
    """Pins: where the sum of the candidates reached the share but their running sum did not, by
    one rounding, all tokens were kept.
    """
    monkeypatch.setattr(sampling, "_CANDIDATES", 100)
    generator = torch.Generator().manual_seed(3)
    for _ in range(200):
        probs = torch.rand(2000, generator=generator, dtype=torch.float64)
        share = float(probs.topk(100).values.sum() / probs.sum())
        sampling._keep_mass(probs, share)
        assert 100 <= int((probs > 0).sum()) <= 101


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-38, 1e-45, 5e-324])
def test_a_tiny_temperature_is_nearly_greedy(temperature: float) -> None:
    """Pins: dividing by it overflowed, the distribution was not a number, the token no token."""
    logits = torch.tensor([[1.0, 9.0, -50.0, float("-inf"), 8.0]])
    assert set(draws(logits, 20, temperature=temperature)) == {1}


@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_padding_ids_are_never_sampled(temperature: float) -> None:
    """Pins: placeholder rows of a padded embedding were produced."""
    logits = torch.zeros(1, 72)
    logits[:, 64:] = float("-inf")
    tokens = draws(logits, 2000, temperature=temperature)
    assert max(tokens) < 64
    assert sample(logits, [row(temperature=0, logit_bias={3: 1.0})]) == [3]


# ------------------------------------------------------------------ drawing


def test_uniform_numbers_lie_in_the_half_open_unit_interval() -> None:
    numbers = [uniform(seed, position) for seed in range(200) for position in range(20)]
    assert 0 <= min(numbers) < 0.01
    assert 0.99 < max(numbers) < 1
    assert len(set(numbers)) == len(numbers)
    assert chisquare([sum(int(x * 10) == i for x in numbers) for i in range(10)]).pvalue > 0.001


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1, -(2**63)])
def test_every_allowed_seed_gives_numbers(seed: int) -> None:
    assert 0 <= uniform(seed, 0) < 1
    assert derive_seed(seed, 0) == seed
    assert len({derive_seed(seed, i) for i in range(256)}) == 256


@pytest.mark.parametrize("draw", [0.0, 0.25, 0.5, 1 - 2**-53])
def test_tokens_of_probability_zero_are_never_drawn(monkeypatch, draw: float) -> None:
    monkeypatch.setattr(sampler, "uniform", lambda seed, position: draw)
    logits = torch.full((1, 50), float("-inf"))
    logits[0, [7, 20, 31]] = torch.tensor([0.0, 0.1, -0.3])
    assert sample(logits, [row()])[0] in (7, 20, 31)
    assert sample(logits, [row(top_k=1)]) == [20]
    assert draw or sample(logits, [row()]) == [7]


@pytest.mark.parametrize("value", [float("-inf"), float("nan")])
def test_a_row_with_nothing_to_draw_from_gives_an_id_that_exists(value: float) -> None:
    """Pins: it gave the id after the last one, which failed the whole batch in the next step."""
    logits = torch.full((2, 9), value)
    logits[1] = torch.arange(9.0)
    alone = sample(logits[1:], [row(seed=3)])
    assert sample(logits, [row(seed=3), row(seed=3)]) == [0, *alone]
    assert sample(logits, [row(temperature=0), row(seed=3)]) == [0, *alone]


def test_frequencies_follow_the_distribution() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0, 2.0, 0.5, -30.0]])
    for params in ({}, {"temperature": 2.0}, {"top_p": 0.8}, {"min_p": 0.2}):
        tokens = draws(logits, 8000, **params)
        probs = probabilities(logits, [row(**params)])[0]
        expected = [p * 8000 / float(probs.sum()) for p in probs.tolist()]
        likely = [i for i, e in enumerate(expected) if e > 1]
        counts = [tokens.count(i) for i in likely]
        assert sum(counts) == 8000
        scale = 8000 / sum(expected[i] for i in likely)
        assert chisquare(counts, [expected[i] * scale for i in likely]).pvalue > 0.001


def test_positions_of_one_request_are_independent() -> None:
    logits = torch.zeros(1, 4)
    rows = [SamplingRow(SamplingParams(), 5, i, [], {}, ()) for i in range(2000)]
    tokens = sample(logits.expand(2000, -1), rows)
    pairs = [4 * a + b for a, b in itertools.pairwise(tokens)]
    assert chisquare([pairs.count(i) for i in range(16)]).pvalue > 0.001


# ------------------------------------------------------------------ neighbours

MIXED = [
    row(temperature=0),
    row(temperature=0.9, seed=11),
    row((1, 2), (3,), temperature=1.3, top_p=0.7, repetition_penalty=1.4, seed=12),
    row((), (5, 5, 6), top_k=7, frequency_penalty=0.6, presence_penalty=0.2, seed=13),
    row(min_p=0.2, logit_bias={4: 3.0}, seed=14, min_tokens=3, stop_ids=(0, 1)),
    row(temperature=0, frequency_penalty=1.0, output=(2, 2)),
]


@pytest.mark.parametrize("vocab_size", [7, 320, 3000])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(vocab_size: int) -> None:
    """Pins: a seeded request changed as soon as an unseeded one shared its batch."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(len(MIXED), vocab_size, generator=generator) * 3
    before = logits.clone()
    together = process_logits(logits, MIXED)
    tokens = sample(logits, MIXED)
    probs = probabilities(together[1:5], MIXED[1:5])
    for i, one in enumerate(MIXED):
        assert torch.equal(process_logits(logits[i : i + 1], [one])[0], together[i])
        assert sample(logits[i : i + 1], [one]) == [tokens[i]]
        if not one.params.is_greedy:
            alone = probabilities(together[i : i + 1], [one])
            assert torch.equal(alone[0], probs[i - 1])
    order = [3, 0, 5, 1, 4, 2]
    assert sample(logits[order], [MIXED[i] for i in order]) == [tokens[i] for i in order]
    assert torch.equal(logits, before), "the caller's logits were changed"


def test_nothing_to_sample_is_no_error() -> None:
    assert sample(torch.empty(0, 5), []) == []


# ------------------------------------------------------------------ bias, penalties, masks


def test_repetition_penalty_multiplies_negative_logits() -> None:
    """Pins: dividing a negative logit makes a repeated token more likely."""
    logits = torch.tensor([[-2.0, -3.0]])
    params = {"repetition_penalty": 2.0, "temperature": 0}
    assert sample(logits, [row(output=(0,), **params)]) == [1]
    assert process_logits(logits, [row(output=(0,), **params)]).tolist() == [[-4.0, -3.0]]
    positive = process_logits(torch.tensor([[2.0, 3.0]]), [row(prompt=(1,), **params)])
    assert positive.tolist() == [[2.0, 1.5]]


def test_only_the_repetition_penalty_looks_at_the_prompt() -> None:
    """Pins: presence and frequency penalties counted prompt tokens."""
    logits = torch.tensor([[1.0, 0.9]])
    prompt = (0, 0, 0, 0)
    params = {"frequency_penalty": 2, "presence_penalty": 2, "temperature": 0}
    assert sample(logits, [row(prompt, **params)]) == [0]
    assert sample(logits, [row(prompt, (0,), **params)]) == [1]
    assert sample(logits, [row(prompt, repetition_penalty=2.0, temperature=0)]) == [1]


def test_frequency_counts_and_presence_does_not() -> None:
    logits = torch.zeros(1, 3)
    changed = process_logits(
        logits, [row((), (1, 1, 2), frequency_penalty=0.5, presence_penalty=0.25)]
    )
    assert changed.tolist() == [[0.0, -1.25, -0.75]]


def test_bias_acts_before_penalties_and_the_mask_after() -> None:
    changed = process_logits(
        torch.tensor([[1.0, 1.0, 1.0]]),
        [
            row(
                (),
                (0,),
                logit_bias={0: 3.0, 2: 100.0},
                repetition_penalty=2.0,
                frequency_penalty=0.5,
                min_tokens=2,
                stop_ids=(2,),
            )
        ],
    )
    assert changed.tolist() == [[1.5, 1.0, float("-inf")]]  # (1 + 3) / 2 - 0.5


@pytest.mark.parametrize("bias", [{}, {1: 0.5}])
@pytest.mark.parametrize("num_output", [0, 1, 2, 3])
def test_stop_tokens_are_masked_before_min_tokens(num_output: int, bias) -> None:
    logits = torch.tensor([[9.0, 0.0, 8.0]])
    chosen = sample(
        logits,
        [row((), (1,) * num_output, temperature=0, min_tokens=2, stop_ids=(0, 2), logit_bias=bias)],
    )
    assert chosen == [1 if num_output < 2 else 0]


# ------------------------------------------------------------------ log-probabilities


def test_logprobs_are_raw_ranked_and_hold_the_chosen_token() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, -2.0], [0.0, 0.0, 0.0, 0.0]])
    first, second = position_logprobs(logits, [3, 2], [2, 1])
    exact = torch.log_softmax(logits.double(), -1)
    assert list(first) == [3, 1, 2]
    assert [entry.rank for entry in first.values()] == [4, 1, 2]
    assert {t: e.logprob for t, e in first.items()} == pytest.approx(
        {t: float(exact[0, t]) for t in first}
    )
    assert {t: e.rank for t, e in second.items()} == {2: 3, 0: 1}


def test_logprobs_of_a_row_have_the_same_bits_alone_and_in_a_batch() -> None:
    """Pins: on several threads the sum of one row alone was split among them.

    About one row in fifty then differed in its last bit, too few for a small test to meet.
    """
    num_rows, num_threads = 384, torch.get_num_threads()
    logits = torch.randn(num_rows, 49152, generator=torch.Generator().manual_seed(0)) * 4 + 8
    chosen, counts = list(range(num_rows)), [1] * num_rows
    try:
        torch.set_num_threads(2)
        together = position_logprobs(logits, chosen, counts)
        alone = [position_logprobs(logits[i : i + 1], [i], [1])[0] for i in chosen]
    finally:
        torch.set_num_threads(num_threads)
    assert alone == together


@pytest.mark.parametrize("count", [0, 1, 5, 64])
def test_the_number_of_alternatives_is_what_was_asked(count: int) -> None:
    logits = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    best = int(logits.argmax())
    (entry,) = position_logprobs(logits, [best], [count])
    assert len(entry) == max(count, 1)
    (other,) = position_logprobs(logits, [int(logits.argmin())], [count])
    assert len(other) == min(count + 1, 64)
    assert sorted(e.rank for e in other.values())[:count] == list(range(1, count + 1))


def test_minus_infinity_is_reported_as_a_floor() -> None:
    """Pins: minus infinity in an answer cannot be written as JSON."""
    logits = torch.tensor([[0.0, float("-inf"), float("-inf")]])
    (entry,) = position_logprobs(logits, [1], [3])
    assert {t: e.logprob for t, e in entry.items()} == {1: LOGPROB_FLOOR, 0: 0.0, 2: LOGPROB_FLOOR}
