"""Windows, perplexity of model and baseline on the same tokens, and routing shares."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from infopt.training.bigram import Bigram
from infopt.training.model import build_model
from infopt.training.recipes import VOCAB_SIZE, Recipe
from infopt.training.text import TokenizedCorpus
from infopt.training.validation import (
    WINDOW,
    Validation,
    cut_windows,
    model_nll,
    routing_shares,
    validate,
)


def test_windows_do_not_overlap_and_lie_evenly() -> None:
    stream = np.arange(WINDOW * 9 + 5)
    windows = cut_windows(stream)
    assert windows.shape == (9, WINDOW)
    assert windows.flatten().tolist() == stream[:-5].tolist()
    assert cut_windows(stream, 3)[:, 0].tolist() == [0, 4 * WINDOW, 8 * WINDOW]
    assert cut_windows(stream, 20).shape == (9, WINDOW)


def test_share_is_the_ratio() -> None:
    value = Validation(num_tokens=10, perplexity=13.0, bigram_perplexity=20.0)
    assert value.share == 0.65
    assert value.to_dict()["share"] == 0.65


def test_perplexity_is_that_of_the_log_probabilities(
    tokenized: TokenizedCorpus, small_recipe: Callable[..., Recipe]
) -> None:
    model = build_model(small_recipe(), seed=0).eval()
    bigram = Bigram(tokenized.train, VOCAB_SIZE)
    windows = cut_windows(tokenized.heldout["docs"], 9)  # more than one batch
    value = validate(model, bigram, windows)
    with torch.inference_mode():
        logits = model(input_ids=torch.from_numpy(windows[:1])).logits[0, :-1]
    expected = -logits.log_softmax(-1)[range(WINDOW - 1), windows[0, 1:].tolist()]
    np.testing.assert_allclose(model_nll(model, windows)[0], expected.numpy(), atol=1e-5)
    assert value.num_tokens == 9 * (WINDOW - 1)
    assert value.perplexity == pytest.approx(VOCAB_SIZE, rel=0.2)  # random weights know nothing
    bigram_loss = -np.log(bigram.probabilities[windows[:, :-1], windows[:, 1:]]).mean()
    assert value.bigram_perplexity == pytest.approx(math.exp(bigram_loss))


def test_routing_shares_name_every_layer_with_experts(
    tokenized: TokenizedCorpus, small_recipe: Callable[..., Recipe]
) -> None:
    model = build_model(small_recipe("tiny-moe"), seed=0).eval()
    shares = routing_shares(model, cut_windows(tokenized.heldout["docs"], 2))
    assert len(shares) == 1  # the second of two layers
    assert len(shares[0]) == 8
    assert sum(shares[0]) == pytest.approx(1, abs=1e-3)
