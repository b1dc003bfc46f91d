"""The baseline: proper probabilities, the formula by hand, and better than no context."""

from __future__ import annotations

import math

import numpy as np

from infopt.training.bigram import Bigram
from infopt.training.recipes import VOCAB_SIZE
from infopt.training.text import TokenizedCorpus


def test_probabilities_by_hand() -> None:
    # Pairs of 0 1 0 1 0 2: (0,1) twice, (1,0) twice, (0,2) once, so D = 1 / (1 + 2 * 2) = 0.2;
    # one token precedes 0, one 1, one 2, none 3: q = 2/7, 2/7, 2/7, 1/7.
    p = Bigram(np.array([0, 1, 0, 1, 0, 2]), 4).probabilities
    left_over = 0.2 * 2 / 3
    expected = [
        left_over * 2 / 7,
        (2 - 0.2) / 3 + left_over * 2 / 7,
        (1 - 0.2) / 3 + left_over * 2 / 7,
        left_over / 7,
    ]
    np.testing.assert_allclose(p[0], expected)
    np.testing.assert_allclose(p[2], [2 / 7, 2 / 7, 2 / 7, 1 / 7])  # nothing ever followed 2
    np.testing.assert_allclose(p.sum(axis=1), 1)


def test_every_row_sums_to_one_and_nothing_is_impossible(tokenized: TokenizedCorpus) -> None:
    p = Bigram(tokenized.train, VOCAB_SIZE).probabilities
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert p.min() > 0


def test_it_beats_frequencies_on_heldout_text(tokenized: TokenizedCorpus) -> None:
    """A weak baseline would flatter what is compared with it."""
    counts = np.bincount(tokenized.train, minlength=VOCAB_SIZE) + 1.0
    frequencies = counts / counts.sum()
    bigram = Bigram(tokenized.train, VOCAB_SIZE)
    for stream in tokenized.heldout.values():
        unigram_loss = -np.log(frequencies[stream[1:]]).mean()
        assert bigram.nll(stream[:-1], stream[1:]).mean() < unigram_loss - 1.0


def test_nll_is_elementwise() -> None:
    bigram = Bigram(np.array([0, 1, 0, 1, 0, 2]), 4)
    before, after = np.array([[0, 1], [2, 0]]), np.array([[1, 0], [3, 2]])
    values = bigram.nll(before, after)
    assert values.shape == (2, 2)
    assert values[1, 0] == -math.log(bigram.probabilities[2, 3])
