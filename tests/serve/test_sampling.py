"""Sampling fields through the HTTP layer, on logits of one's choice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from infopt.engine import rejection as sampling_module

PATH = "/v1/completions"
A, B, C = 70, 80, 90


@pytest.fixture
def logits(server: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, float]], None]:
    """Give every position the same logits: these ids have these values, others none to speak of."""
    real = sampling_module.sample

    def install(values: dict[int, float]) -> None:
        def replaced(given: torch.Tensor, rows: list[Any], draw: Any) -> list[int]:
            fixed = torch.full_like(given, -1e4)
            fixed[:, list(values)] = torch.tensor(list(values.values()))
            return real(fixed, rows, draw)

        monkeypatch.setattr(sampling_module, "sample", replaced)

    return install


def tokens(server: Any, **fields: Any) -> list[str]:
    """Return the tokens of a completion of 8, as text."""
    body = {"prompt": [5], "max_tokens": 8, "ignore_eos": True, "logprobs": 0} | fields
    return server.complete(**body)["choices"][0]["logprobs"]["tokens"]


@pytest.fixture
def name(server: Any) -> Callable[[int], str]:
    from infopt.serve.logprobs import token_text

    return lambda token_id: token_text(server.tokenizer.token_bytes(token_id))


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 0, "top_p": 0.9},
        {"temperature": 1, "top_k": 1},
        {"temperature": 5, "top_k": 1},
    ],
)
def test_ties_go_to_the_lowest_id_beside_a_random_neighbour(server, logits, name, fields):
    """Greedy became a tiny temperature beside a random request, and ties a coin toss."""
    logits({A: 3.0, B: 3.0, C: 1.0})
    with ThreadPoolExecutor(4) as pool:
        beside = [pool.submit(tokens, server, temperature=1, seed=i) for i in range(4)]
        for _ in range(5):
            assert tokens(server, **fields) == [name(A)] * 8
        drawn = {token for future in beside for token in future.result()}
    assert {name(A), name(B)} <= drawn


def test_more_than_the_vocabulary_is_all_of_it(server):
    """A top_k above the size of the vocabulary was an error."""
    plain = tokens(server, seed=4, temperature=1.5)
    for top_k in (320, 100_000, 0, -1):
        assert tokens(server, seed=4, temperature=1.5, top_k=top_k) == plain


def test_no_top_k_keeps_the_best(server, logits, name):
    """Off left no candidate, so that id 0 was always returned."""
    logits({A: 5.0, B: 1.0})
    for top_k in (0, -1):
        drawn = [token for seed in range(6) for token in tokens(server, seed=seed, top_k=top_k)]
        assert drawn.count(name(A)) > 35  # 98 % of 48 are expected


def test_filters_in_a_row_see_what_is_left(server, logits, name):
    """Of 0.5, 0.3, 0.15, 0.05 the first is 0.625 of the best two: enough for top_p 0.6."""
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    logits(dict(zip((A, B, C, 100), probabilities, strict=True)))
    for seed in range(6):
        assert tokens(server, seed=seed, top_k=2, top_p=0.6) == [name(A)] * 8
    drawn = {t for seed in range(30) for t in tokens(server, seed=seed, temperature=2, min_p=0.5)}
    assert drawn == {name(A), name(B), name(C)}  # min_p sees the flattened distribution


def test_penalties_and_the_prompt(server, logits, name):
    """Presence and frequency counted the tokens of the prompt."""
    logits({A: 3.0, B: 2.0})
    fields = {"prompt": [A] * 4, "max_tokens": 1, "temperature": 0}
    plain = tokens(server, **fields)
    assert tokens(server, **fields, frequency_penalty=2, presence_penalty=2) == plain == [name(A)]
    assert tokens(server, **fields, repetition_penalty=2) == [name(B)]


def test_a_negative_logit_is_multiplied_by_the_repetition_penalty(server, logits, name):
    """Dividing it made a repeated token likelier."""
    logits({A: -2.0, B: -3.0})
    fields = {"prompt": [A], "max_tokens": 1, "temperature": 0}
    assert tokens(server, **fields) == [name(A)]
    assert tokens(server, **fields, repetition_penalty=2) == [name(B)]


def test_reported_values_are_raw_and_finite_under_a_form(server):
    """Masked tokens were minus infinity, which JSON cannot hold: the answer became a 500."""
    answer = server.complete(
        [5],
        max_tokens=20,
        logprobs=5,
        structured_outputs={"json": {"enum": ["a", "b"]}},
    )
    choice = answer["choices"][0]
    assert choice["text"] in ('"a"', '"b"')
    tops = choice["logprobs"]["top_logprobs"]
    assert all(len(top) >= 5 for top in tops)
    assert all(-9999 <= value <= 0 for top in tops for value in top.values())
