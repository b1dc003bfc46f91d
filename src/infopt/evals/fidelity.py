"""Fidelity: how far a configuration's predictions are from a reference's, on the same tokens.

With p the reference's and q the candidate's distribution at a position, all in nats::

    KL(p || q) = sum_x p(x) (ln p(x) - ln q(x))

KL sees every change of the distribution. Top-1 agreement sees only the most likely token and flips
on margins that nobody would notice, so it is reported beside KL, not instead of it. A *flip* is a
position where the reference's most likely token was the right one and the candidate's is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from infopt.errors import MeasurementError
from infopt.evals.intervals import bootstrap_ratio
from infopt.evals.model import EvalModel
from infopt.evals.progress import track
from infopt.evals.reference_logits import ReferenceLogits
from infopt.evals.windows import Window, check_windows, scored_logits

_CHUNK_ROWS = 64  # 64 rows of a 262k vocabulary are 67 MB per temporary
_MIN_TOKENS_P99 = 100  # below this the 99th percentile is the maximum


@dataclass(frozen=True, slots=True)
class TokenFidelity:
    """Fidelity of one window, position by position; arrays have shape (num_scored,).

    Attributes:
        kl: KL(reference || candidate) in nats.
        same_top1: Whether both have the same most likely token.
        reference_right, candidate_right: Whether the most likely token was the next one.
        reference_nll, candidate_nll: Negative log-probability of the next token, in nats.
        max_abs_dlogit: Largest difference between two logits of the window.
    """

    kl: np.ndarray
    same_top1: np.ndarray
    reference_right: np.ndarray
    candidate_right: np.ndarray
    reference_nll: np.ndarray
    candidate_nll: np.ndarray
    max_abs_dlogit: float


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Fidelity over all windows.

    Attributes:
        kl_mean: Mean KL in nats per token.
        kl_low, kl_high: Its 95 % interval (bootstrap over windows; None for a single window).
        kl_p99: 99th percentile over tokens (None below 100 tokens).
        top1_agreement: Share of positions with the same most likely token.
        flip_rate: Flips per position where the reference was right (None if it never was).
        num_flips, num_reference_right: Its numerator and denominator.
        max_abs_dlogit: Largest difference between two logits.
        num_tokens: Positions compared.
    """

    kl_mean: float
    kl_low: float | None
    kl_high: float | None
    kl_p99: float | None
    top1_agreement: float
    flip_rate: float | None
    num_flips: int
    num_reference_right: int
    max_abs_dlogit: float
    num_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a record."""
        return asdict(self)


def compare(
    reference: EvalModel | ReferenceLogits,
    candidate: EvalModel,
    windows: Sequence[Window],
    *,
    seed: int = 0,
    use_tqdm: bool = True,
) -> Fidelity:
    """Compare a candidate with a reference, window by window.

    Args:
        reference: The reference model, or its stored logits on these windows.
        candidate: The model to judge.
        windows: On what tokens.
        seed: Seed of the interval's resampling.
        use_tqdm: Show progress.

    Raises:
        MeasurementError: If there are no windows, the vocabularies differ, or logits are NaN.
        PromptTooLongError: If a window is longer than a model's limit.
    """
    parts = compare_windows(reference, candidate, windows, use_tqdm=use_tqdm)
    return summarise(parts, seed=seed)


def compare_windows(
    reference: EvalModel | ReferenceLogits,
    candidate: EvalModel,
    windows: Sequence[Window],
    *,
    use_tqdm: bool = True,
) -> list[TokenFidelity]:
    """Do the work of :func:`compare` and keep the result of each position."""
    check_windows(candidate, windows)
    if not isinstance(reference, ReferenceLogits):
        check_windows(reference, windows)
    parts = []
    for window in track(windows, "fidelity", use_tqdm):
        expected, actual = _logits_of(reference, window), _logits_of(candidate, window)
        parts.append(compare_logits(expected, actual, window.scored_ids))
    return parts


def _logits_of(source: EvalModel | ReferenceLogits, window: Window) -> torch.Tensor:
    if isinstance(source, ReferenceLogits):
        return source.scored_logits(window)
    return scored_logits(source, window)


def compare_logits(
    reference: torch.Tensor, candidate: torch.Tensor, targets: Sequence[int]
) -> TokenFidelity:
    """Compare two logit matrices.

    Args:
        reference: float32, shape (num_scored, vocab_size); -inf marks ids that cannot occur.
        candidate: The same shape.
        targets: The tokens that came next, shape (num_scored,).

    Raises:
        MeasurementError: If the shapes differ, a row is NaN, or KL is infinite.
    """
    if reference.shape != candidate.shape:
        raise MeasurementError(
            f"Reference logits have shape {tuple(reference.shape)}, the candidate's "
            f"{tuple(candidate.shape)}.",
            field="vocab_size",
            value=candidate.shape[-1],
            remedy="Compare configurations of one model: vocabularies must be the same.",
        )
    ids = torch.as_tensor(targets, dtype=torch.int64)
    chunks = [
        _compare_rows(reference[i : i + _CHUNK_ROWS], candidate[i : i + _CHUNK_ROWS], t)
        for i, t in zip(range(0, len(ids), _CHUNK_ROWS), ids.split(_CHUNK_ROWS), strict=True)
    ]
    names = ("kl", "same_top1", "reference_right", "candidate_right")
    names += ("reference_nll", "candidate_nll")
    arrays = {name: np.concatenate([getattr(c, name) for c in chunks]) for name in names}
    return TokenFidelity(**arrays, max_abs_dlogit=max(c.max_abs_dlogit for c in chunks))


def _compare_rows(
    reference: torch.Tensor, candidate: torch.Tensor, targets: torch.Tensor
) -> TokenFidelity:
    """Compare a few rows. Equal inputs give a KL of exactly 0: the same code runs on both."""
    reference, candidate = reference.float().cpu(), candidate.float().cpu()
    log_p, log_q = _log_softmax(reference, "reference"), _log_softmax(candidate, "candidate")
    p = log_p.exp()
    # 0 ln 0 is 0 in the limit, NaN in floating point.
    terms = torch.where(p > 0, p * (log_p - log_q), torch.zeros(()))
    _check_support(terms)
    top_p, top_q = reference.argmax(dim=-1), candidate.argmax(dim=-1)
    both = torch.isfinite(reference) & torch.isfinite(candidate)
    dlogit = torch.where(both, (reference - candidate).abs(), torch.zeros(()))
    index = targets[:, None]
    return TokenFidelity(
        kl=terms.sum(dim=-1, dtype=torch.float64).numpy(),
        same_top1=(top_p == top_q).numpy(),
        reference_right=(top_p == targets).numpy(),
        candidate_right=(top_q == targets).numpy(),
        reference_nll=-log_p.gather(1, index)[:, 0].double().numpy(),
        candidate_nll=-log_q.gather(1, index)[:, 0].double().numpy(),
        max_abs_dlogit=float(dlogit.max()),
    )


def _log_softmax(logits: torch.Tensor, whose: str) -> torch.Tensor:
    result = torch.log_softmax(logits, dim=-1)
    if bool(torch.isnan(result).any()):
        raise MeasurementError(
            f"The {whose} computed NaN logits.",
            field=whose,
            value="nan",
            remedy="Its weights or kernels are broken; a fidelity figure would mean nothing.",
        )
    return result


def _check_support(terms: torch.Tensor) -> None:
    if bool(torch.isinf(terms).any()):
        token_id = int(torch.isinf(terms).nonzero()[0, 1])
        raise MeasurementError(
            f"The candidate rules out token {token_id}, which the reference holds possible: KL is "
            "infinite.",
            field="logits",
            value=token_id,
            remedy="Compare configurations that mask the same tokens.",
        )


def summarise(parts: Sequence[TokenFidelity], *, seed: int = 0) -> Fidelity:
    """Combine windows; the interval resamples whole windows, since neighbours depend."""
    kl = np.concatenate([part.kl for part in parts])
    sums = np.array([part.kl.sum() for part in parts])
    interval = bootstrap_ratio(sums, np.array([float(len(p.kl)) for p in parts]), seed=seed)
    right = np.concatenate([part.reference_right for part in parts])
    kept = np.concatenate([part.candidate_right for part in parts])
    num_right, num_flips = int(right.sum()), int((right & ~kept).sum())
    return Fidelity(
        kl_mean=float(kl.mean()),
        kl_low=None if interval is None else interval.low,
        kl_high=None if interval is None else interval.high,
        kl_p99=float(np.quantile(kl, 0.99)) if len(kl) >= _MIN_TOKENS_P99 else None,
        top1_agreement=float(np.concatenate([part.same_top1 for part in parts]).mean()),
        flip_rate=num_flips / num_right if num_right else None,
        num_flips=num_flips,
        num_reference_right=num_right,
        max_abs_dlogit=max(part.max_abs_dlogit for part in parts),
        num_tokens=len(kl),
    )


def perplexity_ratio(
    parts: Sequence[TokenFidelity], *, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """Return candidate / reference token perplexity with its paired 95 % interval.

    Both are measured on the same tokens, so the interval of the ratio is far narrower than the two
    perplexities' own.
    """
    delta = np.array([(part.candidate_nll - part.reference_nll).sum() for part in parts])
    counts = np.array([float(len(part.kl)) for part in parts])
    interval = bootstrap_ratio(delta, counts, seed=seed)
    ratio = float(np.exp(delta.sum() / counts.sum()))
    if interval is None:
        return ratio, None, None
    return ratio, float(np.exp(interval.low)), float(np.exp(interval.high))
