import math

import numpy as np
import pytest
import torch

from infopt.errors import MeasurementError
from infopt.evals.fidelity import (
    compare,
    compare_logits,
    compare_windows,
    perplexity_ratio,
    summarise,
)
from infopt.evals.perplexity import perplexity
from infopt.evals.windows import Window, text_windows

TEXT = "Sphinx of black quartz, judge my vow. " * 20


def test_kl_of_hand_distributions():
    p, q = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.25, 0.25, 0.5]])
    result = compare_logits(p.log(), q.log(), [0])
    assert result.kl[0] == pytest.approx(0.25 * math.log(2), abs=1e-7)
    assert result.reference_nll[0] == pytest.approx(math.log(2))
    assert result.candidate_nll[0] == pytest.approx(math.log(4))
    assert not result.same_top1[0]
    assert result.reference_right[0]
    assert not result.candidate_right[0]
    assert result.max_abs_dlogit == pytest.approx(math.log(2))


def test_kl_has_the_reference_first():
    """KL is not symmetric: KL(p||q) and KL(q||p) of these differ by a factor of 1.6."""
    p, q = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])
    forward = compare_logits(p.log(), q.log(), [0]).kl[0]
    backward = compare_logits(q.log(), p.log(), [0]).kl[0]
    assert forward == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2), abs=1e-7)
    assert backward == pytest.approx(0.5 * math.log(5 / 9) + 0.5 * math.log(5), abs=1e-7)


def test_kl_of_identical_models_is_exactly_zero(make_bigram):
    windows = text_windows(make_bigram(), TEXT, context=100).windows
    result = compare(make_bigram(), make_bigram(), windows, use_tqdm=False)
    assert result.kl_mean == result.kl_low == result.kl_high == result.kl_p99 == 0.0
    assert result.top1_agreement == 1.0
    assert result.num_flips == 0
    assert result.max_abs_dlogit == 0.0
    assert result.num_tokens == 7 * 99


def test_adding_a_constant_to_all_logits_changes_nothing_but_the_logits():
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    result = compare_logits(logits, logits + 3.0, [1, 2, 3, 4, 5])
    assert result.kl == pytest.approx(np.zeros(5), abs=1e-6)
    assert result.same_top1.all()
    assert result.max_abs_dlogit == pytest.approx(3.0, abs=1e-5)


def test_kl_matches_float64_over_chunks_of_rows():
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.randn(150, 1000, generator=generator) * 4 for _ in range(2))
    log_p, log_q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    expected = (log_p.exp() * (log_p - log_q)).sum(-1).numpy()
    result = compare_logits(p, q, [0] * 150)
    np.testing.assert_allclose(result.kl, expected, rtol=1e-5)
    assert (result.same_top1 == (p.argmax(-1) == q.argmax(-1)).numpy()).all()


def test_flips_count_only_where_the_reference_was_right():
    right = torch.tensor([2.0, 0.0, 0.0])
    wrong = torch.tensor([0.0, 2.0, 0.0])
    reference = torch.stack([right, right, right, wrong, wrong])
    candidate = torch.stack([right, wrong, wrong, right, wrong])
    result = summarise([compare_logits(reference, candidate, [0] * 5)])
    assert (result.num_flips, result.num_reference_right) == (2, 3)
    assert result.flip_rate == pytest.approx(2 / 3)
    assert result.top1_agreement == pytest.approx(2 / 5)


def test_no_flip_rate_where_the_reference_is_never_right():
    logits = torch.tensor([[0.0, 1.0]])
    assert summarise([compare_logits(logits, logits, [0])]).flip_rate is None


def test_no_99th_percentile_of_few_tokens(make_bigram):
    windows = text_windows(make_bigram(), TEXT, context=34, max_tokens=68).windows
    result = compare(make_bigram(), make_bigram(noise=0.1), windows, use_tqdm=False)
    assert result.num_tokens == 66
    assert result.kl_p99 is None


def test_more_noise_is_more_kl_and_costs_perplexity(make_bigram):
    windows = text_windows(make_bigram(), TEXT, context=100).windows
    results = [
        compare(make_bigram(), make_bigram(noise=noise), windows, use_tqdm=False)
        for noise in (0.05, 0.5)
    ]
    assert 0 < results[0].kl_mean < 0.1 * results[1].kl_mean
    low, high, p99 = results[1].kl_low, results[1].kl_high, results[1].kl_p99
    assert low is not None and high is not None and p99 is not None
    assert low <= results[1].kl_mean <= high
    assert results[1].kl_mean < p99


def test_perplexity_ratio_is_that_of_the_perplexities(make_bigram):
    reference, candidate = make_bigram(), make_bigram(noise=0.3)
    windows = text_windows(reference, TEXT, context=100).windows
    parts = compare_windows(reference, candidate, windows, use_tqdm=False)
    ratio, low, high = perplexity_ratio(parts)
    values = [perplexity(llm, windows).token_perplexity for llm in (reference, candidate)]
    assert ratio == pytest.approx(values[1] / values[0], rel=1e-5)
    assert low is not None and high is not None
    assert low <= ratio <= high
    assert perplexity_ratio(parts[:1])[1:] == (None, None)


def test_impossible_tokens_add_nothing():
    """Pins NaN from 0 * ln 0 where padded vocabulary entries are -inf in both."""
    p = torch.tensor([[0.5, 0.5, 0.0]]).log()
    q = torch.tensor([[0.25, 0.75, 0.0]]).log()
    result = compare_logits(p, q, [0])
    assert result.kl[0] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-7)
    assert math.isfinite(result.max_abs_dlogit)


def test_a_candidate_that_rules_out_a_possible_token_is_an_error():
    with pytest.raises(MeasurementError, match="rules out token 2"):
        compare_logits(torch.zeros(1, 3), torch.tensor([[0.0, 0.0, -torch.inf]]), [0])


def test_nan_logits_are_an_error():
    with pytest.raises(MeasurementError, match="candidate computed NaN"):
        compare_logits(torch.zeros(1, 3), torch.full((1, 3), torch.nan), [0])


def test_vocabularies_must_match():
    with pytest.raises(MeasurementError, match=r"\(2, 3\).*\(2, 4\)"):
        compare_logits(torch.zeros(2, 3), torch.zeros(2, 4), [0, 0])


def test_no_windows(uniform_llm):
    with pytest.raises(MeasurementError, match="No windows"):
        compare(uniform_llm, uniform_llm, [])


def test_last_row_of_a_window_is_not_used(make_bigram):
    """Row i predicts token i + 1, so a window of three tokens has two predictions."""
    llm = make_bigram()
    (part,) = compare_windows(llm, llm, [Window((97, 98, 99), 2)], use_tqdm=False)
    expected = [-llm.table[a].log_softmax(-1)[b].item() for a, b in ((97, 98), (98, 99))]
    assert part.reference_nll == pytest.approx(expected, rel=1e-6)
