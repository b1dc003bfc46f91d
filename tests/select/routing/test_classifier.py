"""Features, logistic regression against torch, and the trained policy on unseen prompts."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from infopt.errors import ConfigError, MeasurementError
from infopt.select.routing import ClassifierPolicy, RouteRequest, routing_curve, split_items
from infopt.select.routing.features import FEATURE_NAMES, NUM_FEATURES, prompt_features
from infopt.select.routing.items import qualities
from infopt.select.routing.logistic import _newton, _span, fit_logistic, log_loss, sigmoid
from infopt.select.routing.train import train_policy


def test_features_by_hand():
    row = prompt_features(["Ab 1+é\n"])[0]
    named = dict(zip(FEATURE_NAMES, row, strict=False))
    assert named["log_characters"] == pytest.approx(math.log(8))
    assert named["log_words"] == pytest.approx(math.log(3))
    assert named["log_lines"] == pytest.approx(math.log(2))
    assert named["share_letter"] == pytest.approx(3 / 7)
    assert named["share_digit"] == pytest.approx(1 / 7)
    assert named["share_upper"] == pytest.approx(1 / 7)
    assert named["share_space"] == pytest.approx(2 / 7)
    assert named["share_non_ascii"] == pytest.approx(1 / 7)
    assert np.linalg.norm(row[len(FEATURE_NAMES) :]) == pytest.approx(1)


@pytest.mark.parametrize("prompt", ["", "a", " ", "\ud800", "😀" * 3, "x" * 100_000])
def test_features_of_any_text_are_finite(prompt):
    assert np.isfinite(prompt_features([prompt])).all()


def test_features_are_the_same_in_every_process():
    """Python's own hash of strings is not."""
    code = (
        "from infopt.select.routing.features import prompt_features as f;"
        "print(f(['The cat sat.'])[0].tolist())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert run.stdout.strip() == str(prompt_features(["The cat sat."])[0].tolist())


def test_newton_finds_what_torch_finds():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 4))
    labels = (rows[:, 0] + rng.normal(size=60) > 0).astype(float)
    x = torch.tensor(np.hstack([rows, np.ones((60, 1))]))
    y, ridge = torch.tensor(labels), torch.tensor([3.0] * 4 + [1e-2])
    w = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([w], max_iter=200, tolerance_grad=1e-10)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ w, y, reduction="sum")
        loss = loss + (ridge * w * w).sum() / 2
        loss.backward()
        return loss

    optimiser.step(closure)
    assert _newton(rows, labels, 3.0) == pytest.approx(w.detach().numpy(), abs=1e-5)


def fold_numbers(count: int) -> np.ndarray:
    return np.arange(count) % 5


def test_the_fit_predicts_and_is_calibrated():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(600, 20)) * 5 + 3
    chances = sigmoid((rows[:, 0] - 3) / 5)
    labels = (rng.random(600) < chances).astype(float)
    fit = fit_logistic(rows, labels, fold_numbers(600))
    assert fit.log_loss < fit.base_log_loss
    predicted = sigmoid(rows @ fit.weights + fit.bias)
    assert np.abs(predicted - chances).mean() < 0.12
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (fit.out_of_fold >= low) & (fit.out_of_fold < low + 0.25)
        if inside.sum() > 30:
            assert labels[inside].mean() == pytest.approx(fit.out_of_fold[inside].mean(), abs=0.12)


def test_noise_is_not_believed():
    """Features without meaning: the chances stay near the plain share."""
    rng = np.random.default_rng(2)
    fit = fit_logistic(
        rng.normal(size=(80, 200)), (rng.random(80) < 0.3).astype(float), fold_numbers(80)
    )
    assert fit.log_loss < fit.base_log_loss + 0.05


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_kind_of_label_is_no_accident(label):
    fit = fit_logistic(np.ones((20, 3)), np.full(20, label), fold_numbers(20))
    assert np.isfinite(fit.weights).all()
    assert fit.out_of_fold == pytest.approx(np.full(20, label), abs=0.05)


def test_bad_training_data_is_named():
    labels = np.zeros(20)
    with pytest.raises(MeasurementError, match="at least 10 items, got 5"):
        fit_logistic(np.ones((5, 2)), np.zeros(5), fold_numbers(5))
    with pytest.raises(MeasurementError, match="number of rows"):
        fit_logistic(np.ones((19, 2)), labels, fold_numbers(20))
    with pytest.raises(MeasurementError, match="finite"):
        fit_logistic(np.full((20, 2), np.nan), labels, fold_numbers(20))
    with pytest.raises(MeasurementError, match="labels from 0 to 1"):
        fit_logistic(np.ones((20, 2)), labels + 2, fold_numbers(20))


def test_log_loss_by_hand():
    assert log_loss(np.array([0.5, 0.25]), np.array([1.0, 0.0])) == pytest.approx(
        -(math.log(0.5) + math.log(0.75)) / 2
    )


def test_the_trained_policy_beats_a_random_one_on_unseen_prompts(make_items):
    train, test = split_items(make_items(300))
    policy = train_policy("classifier", train, "small", "large")
    curve = routing_curve(policy, test)
    assert curve.verdict == "better"
    assert curve.apgr > 0.65
    sums, words = (
        policy.need(RouteRequest("12 + 999 =")),
        policy.need(RouteRequest("what is stone near bread of tree")),
    )
    assert sums > 0.5
    assert abs(words) < 0.3


def test_the_rounded_policy_says_what_the_fits_say(make_items):
    items = make_items(100)
    features = prompt_features([item.prompt for item in items])
    fits = [
        fit_logistic(features, qualities(items, model), fold_numbers(100))
        for model in ("small", "large")
    ]
    policy = ClassifierPolicy.of_fits("small", "large", *fits)
    for item, row in zip(items[:10], features, strict=False):
        exact = [sigmoid(row @ fit.weights + fit.bias) for fit in fits]
        assert policy.chances(item.request) == pytest.approx(exact, abs=1e-4)


def test_few_rows_are_fitted_as_all_features_are():
    """With fewer rows than features the fit works in the rows' own directions."""
    rng = np.random.default_rng(3)
    rows, labels = rng.normal(size=(30, 50)), (rng.random(30) < 0.5).astype(float)
    inner, directions = _span(rows)
    assert inner.shape == (30, 30)
    direct, spanned = _newton(rows, labels, 2.0), _newton(inner, labels, 2.0)
    assert directions @ spanned[:-1] == pytest.approx(direct[:-1], abs=1e-6)
    assert spanned[-1] == pytest.approx(direct[-1], abs=1e-6)


def test_weights_of_another_version_are_refused():
    values = {"cheap": "a", "strong": "b", "threshold": 0.0, "cheap_bias": 0.0, "strong_bias": 0.0}
    good = [0.0] * NUM_FEATURES
    ClassifierPolicy(**values, cheap_weights=good, strong_weights=good)
    for bad in ([0.0] * 3, "weights", None, [math.nan] * NUM_FEATURES):
        with pytest.raises(ConfigError, match="cheap_weights"):
            ClassifierPolicy(**values, cheap_weights=bad, strong_weights=good)
