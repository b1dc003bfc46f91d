import math

import numpy as np
import pytest
import torch

from infopt.errors import MeasurementError
from infopt.evals.perplexity import perplexity, perplexity_from_nll
from infopt.evals.windows import Window, text_windows

TEXT = "The quick brown fox jumps over the lazy dog. " * 20


def test_a_model_that_knows_nothing_has_perplexity_vocabulary_size(uniform_llm):
    result = perplexity(uniform_llm, text_windows(uniform_llm, TEXT, context=50).windows)
    assert result.token_perplexity == pytest.approx(257.0, rel=1e-5)
    assert result.low == pytest.approx(257.0, rel=1e-5)
    assert result.high == pytest.approx(257.0, rel=1e-5)
    assert result.bits_per_byte == pytest.approx(math.log2(257.0), rel=1e-6)
    assert result.num_tokens == result.num_bytes == 18 * 49


def test_word_perplexity_is_token_perplexity_to_the_tokens_per_word(make_bigram):
    llm = make_bigram()
    result = perplexity(llm, text_windows(llm, TEXT, context=50).windows)
    exponent = result.num_tokens / result.num_words
    assert result.word_perplexity == pytest.approx(result.token_perplexity**exponent)


def test_known_probabilities(uniform_llm):
    """Probabilities 1/2, 1/4, 1/8 and 1/8: the mean is 9/4 bits."""
    nll = np.log([2.0, 4.0, 8.0, 8.0])
    result = perplexity_from_nll(uniform_llm, [Window((0, *b"ab c"), 4)], [nll])
    assert result.token_perplexity == pytest.approx(2 ** (9 / 4))
    assert result.bits_per_byte == pytest.approx(9 / 4)
    assert result.word_perplexity == pytest.approx(2 ** (9 / 2))
    assert (result.low, result.high) == (None, None)


def test_interval_surrounds_the_value_and_is_seeded(make_bigram):
    llm = make_bigram()
    windows = text_windows(llm, TEXT, context=37).windows
    results = [perplexity(llm, windows, seed=s) for s in (0, 0, 1)]
    low, high = results[0].low, results[0].high
    assert low is not None and high is not None
    assert low < results[0].token_perplexity < high
    assert results[0] == results[1]
    assert results[0].low != results[2].low


def test_only_scored_tokens_count(make_bigram):
    llm = make_bigram()
    all_but_first = perplexity(llm, [Window(tuple(b"hello world"), 10)])
    last = perplexity(llm, [Window(tuple(b"hello world"), 1)])
    expected = -llm.table[ord("l")].log_softmax(-1)[ord("d")].item()
    assert last.token_perplexity == pytest.approx(math.exp(expected), rel=1e-5)
    assert (all_but_first.num_tokens, last.num_tokens) == (10, 1)


def test_windows_are_scored_in_one_batch(make_bigram):
    llm = make_bigram()
    perplexity(llm, text_windows(llm, TEXT, context=100).windows)
    assert llm.batches == [9]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e6])
def test_a_broken_model_has_no_perplexity(uniform_llm, bad):
    """Pins a result that looks like a number: NaN or overflow must not reach a record."""
    with pytest.raises(MeasurementError, match="no perplexity"):
        perplexity_from_nll(uniform_llm, [Window((0, 97), 1)], [np.array([bad])])


def test_a_masked_token_in_the_text_is_an_error(uniform_llm):
    uniform_llm.table = torch.zeros(257, 257)
    uniform_llm.table[:, ord("q")] = -torch.inf
    with pytest.raises(MeasurementError, match="no perplexity"):
        perplexity(uniform_llm, text_windows(uniform_llm, TEXT, context=50).windows)


def test_no_windows(uniform_llm):
    with pytest.raises(MeasurementError, match="No windows"):
        perplexity(uniform_llm, [])


def test_whitespace_has_no_words(uniform_llm):
    with pytest.raises(MeasurementError, match="no words"):
        perplexity(uniform_llm, [Window(tuple(b"    "), 3)])
