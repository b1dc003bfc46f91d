"""Logistic regression with an L2 penalty, its strength by cross-validation, and calibration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infopt.errors import MeasurementError

Array = NDArray[np.float64]

PENALTIES = (1.0, 10.0, 100.0, 1000.0)
"""Strengths that are tried, in units of one observation."""

NUM_FOLDS = 5
MIN_ROWS = 2 * NUM_FOLDS
_MAX_NEWTON_STEPS = 50


@dataclass(frozen=True, slots=True)
class LogisticFit:
    """A fitted and calibrated model: P(1 | x) = sigmoid(weights · x + bias).

    Attributes:
        weights: Shape (num_features,), calibration included.
        bias: The same.
        penalty: The strength that was chosen.
        out_of_fold: Calibrated probability of each row by the model that did not see it.
        log_loss: Mean log-loss of those, in nats.
        base_log_loss: The same of the plain share of ones.
    """

    weights: Array
    bias: float
    penalty: float
    out_of_fold: Array
    log_loss: float
    base_log_loss: float


def fit_logistic(features: Array, labels: Array, folds: NDArray[np.int64]) -> LogisticFit:
    """Fit weights; the penalty has the lowest log-loss on folds that the fit did not see.

    Weights that overfit are too sure of themselves. So the logits are stretched (Platt scaling: one
    slope, one offset) to fit what came true out of fold, and the stretch becomes part of the
    weights.

    Args:
        features: Shape (num_rows, num_features); standardised inside.
        labels: 0, 1 or a share between, shape (num_rows,).
        folds: Which fold each row is in, shape (num_rows,).

    Raises:
        MeasurementError: If there are too few rows, or shapes or values are wrong.
    """
    _check(features, labels, folds)
    mean, scale = features.mean(axis=0), _scale(features)
    # Fewer rows than features span few directions: the penalty is the same in those alone.
    rows, directions = _span((features - mean) / scale)
    tried = [(_out_of_fold(rows, labels, folds, penalty), penalty) for penalty in PENALTIES]
    logits, penalty = min(tried, key=lambda pair: log_loss(sigmoid(pair[0]), labels))
    # The full fit is nearly as sure of itself as those of the folds: the stretch carries over.
    slope, offset = _platt(logits, labels)
    weights = _newton(rows, labels, penalty)
    inner = slope * (directions @ weights[:-1]) / scale
    out_of_fold = sigmoid(slope * logits + offset)
    base = np.full(len(labels), labels.mean())
    return LogisticFit(
        weights=inner,
        bias=float(slope * weights[-1] + offset - inner @ mean),
        penalty=penalty,
        out_of_fold=out_of_fold,
        log_loss=log_loss(out_of_fold, labels),
        base_log_loss=log_loss(base, labels),
    )


def sigmoid(logits: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * logits))


def log_loss(probabilities: Array, labels: Array) -> float:
    """Return the mean cross-entropy in nats."""
    p = np.clip(probabilities, 1e-9, 1 - 1e-9)
    return float(-np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p)))


def _span(rows: Array) -> tuple[Array, Array]:
    """Return rows in orthogonal directions of their own, and these directions as columns."""
    if len(rows) >= rows.shape[1]:
        return rows, np.eye(rows.shape[1])
    left, sizes, right = np.linalg.svd(rows, full_matrices=False)
    return left * sizes, right.T


def _out_of_fold(rows: Array, labels: Array, folds: NDArray[np.int64], penalty: float) -> Array:
    logits = np.zeros(len(rows))
    for fold in np.unique(folds):
        inside = folds == fold
        weights = _newton(rows[~inside], labels[~inside], penalty)
        logits[inside] = rows[inside] @ weights[:-1] + weights[-1]
    return logits


def _newton(rows: Array, labels: Array, penalty: float) -> Array:
    """Return (weights, bias) at the minimum of log-loss + penalty / 2 |weights|^2.

    By Newton's method. The bias is hardly penalised: a trace, without which it would run away where
    all labels agree.
    """
    design = np.hstack([rows, np.ones((len(rows), 1))])
    ridge = np.full(design.shape[1], penalty)
    ridge[-1] = 1e-2
    weights = np.zeros(design.shape[1])
    for _ in range(_MAX_NEWTON_STEPS):
        p = sigmoid(design @ weights)
        gradient = design.T @ (p - labels) + ridge * weights
        hessian = (design.T * (p * (1 - p))) @ design + np.diag(ridge)
        step = np.linalg.solve(hessian, gradient)
        # Far from the minimum the curvature is too small; a long step would leap over it.
        weights -= step / max(1.0, float(np.linalg.norm(step)) / 5)
        if np.abs(step).max() < 1e-8:
            break
    return weights


def _platt(logits: Array, labels: Array) -> tuple[float, float]:
    """Return slope (never negative) and offset; a fit that misleads out of fold is flattened."""
    slope, offset = _newton(logits[:, None], labels, 1e-2)
    if slope > 0:
        return float(slope), float(offset)
    flat = _newton(np.zeros((len(logits), 1)), labels, 1e-2)
    return 0.0, float(flat[-1])


def _scale(features: Array) -> Array:
    spread = features.std(axis=0)
    return np.where(spread > 1e-9, spread, 1.0)


def _check(features: Array, labels: Array, folds: NDArray[np.int64]) -> None:
    count = len(labels)
    if count < MIN_ROWS:
        raise MeasurementError(
            f"A classifier needs at least {MIN_ROWS} items, got {count}.",
            field="items",
            value=count,
            remedy="Score more items.",
        )
    if features.ndim != 2 or len(features) != count or len(folds) != count:
        raise MeasurementError(
            f"features {features.shape}, labels {labels.shape} and folds {folds.shape} differ in "
            "their number of rows.",
            field="features",
        )
    is_label = bool(np.all((labels >= 0) & (labels <= 1)))
    if not np.isfinite(features).all() or not is_label:
        raise MeasurementError(
            "features must be finite and labels from 0 to 1.", field="labels", value=labels.tolist()
        )
