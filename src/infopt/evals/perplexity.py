"""Perplexity with its protocol: per token, per word, and bits per byte.

With nll the negative log-probabilities in nats of the scored tokens::

    token perplexity = exp(sum nll / tokens)
    word perplexity  = exp(sum nll / words) = token perplexity ** (tokens / words)
    bits per byte    = sum nll / (ln 2 * bytes)

Token perplexity compares configurations of one model. Models with other tokenizers cut other
tokens; bits per byte compares those, on the same text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from infopt.errors import MeasurementError
from infopt.evals.intervals import bootstrap_ratio
from infopt.evals.model import EvalModel
from infopt.evals.windows import Window, check_windows

_MAX_NATS = 700.0  # exp(709.8) is the largest float


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Perplexity of a model on some windows.

    Attributes:
        token_perplexity: exp of the mean negative log-probability per token.
        low, high: Its 95 % interval (bootstrap over windows; None for a single window).
        word_perplexity: Per whitespace-separated word.
        bits_per_byte: Bits to encode one byte of the text.
        num_tokens, num_words, num_bytes: What was scored.
        num_windows: Number of windows.
    """

    token_perplexity: float
    low: float | None
    high: float | None
    word_perplexity: float
    bits_per_byte: float
    num_tokens: int
    num_words: int
    num_bytes: int
    num_windows: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a record."""
        return asdict(self)


def perplexity(
    llm: EvalModel, windows: Sequence[Window], *, seed: int = 0, use_tqdm: bool = True
) -> Perplexity:
    """Score windows in one batch and return their perplexity.

    Args:
        llm: The model.
        windows: What to score (see :mod:`infopt.evals.windows`).
        seed: Seed of the interval's resampling.
        use_tqdm: Show progress.

    Raises:
        MeasurementError: If there are no windows, or a log-probability is not finite.
        PromptTooLongError: If a window is longer than the model's limit.
    """
    check_windows(llm, windows)
    texts = (list(window.token_ids) for window in windows)
    starts = [len(window.token_ids) - window.num_scored for window in windows]
    scores = llm.score(list(texts), start=starts, use_tqdm=use_tqdm)
    nll = [
        -np.array(score.logprobs[-window.num_scored :], dtype=np.float64)
        for window, score in zip(windows, scores, strict=True)
    ]
    return perplexity_from_nll(llm, windows, nll, seed=seed)


def perplexity_from_nll(
    llm: EvalModel, windows: Sequence[Window], nll: Sequence[np.ndarray], *, seed: int = 0
) -> Perplexity:
    """Return the perplexity for known negative log-probabilities.

    Args:
        llm: The model whose tokenizer made the windows.
        windows: The windows.
        nll: Per window, in nats, shape (num_scored,).
        seed: Seed of the interval's resampling.

    Raises:
        MeasurementError: If the values have no perplexity, or the text has no words.
    """
    counts = np.array([len(values) for values in nll], dtype=np.float64)
    num_bytes, num_words = _text_size(llm, windows)
    sums = np.array([values.sum() for values in nll])
    total, num_tokens = _checked_sum(sums, num_words), int(counts.sum())
    interval = bootstrap_ratio(sums, counts, seed=seed)
    return Perplexity(
        token_perplexity=math.exp(total / num_tokens),
        low=None if interval is None else math.exp(interval.low),
        high=None if interval is None else math.exp(interval.high),
        word_perplexity=math.exp(total / num_words),
        bits_per_byte=total / (math.log(2) * num_bytes),
        num_tokens=num_tokens,
        num_words=num_words,
        num_bytes=num_bytes,
        num_windows=len(windows),
    )


def _checked_sum(sums: np.ndarray, num_words: int) -> float:
    """Add up, refusing what has no perplexity: NaN, infinity, or beyond the range of a float."""
    total = float(sums.sum())
    if not total / num_words < _MAX_NATS:
        raise MeasurementError(
            f"The text has no perplexity: its log-probabilities sum to {-total} over {num_words} "
            "words.",
            field="logprobs",
            value=-total,
            remedy="The model computes NaN, masks tokens of the text, or is broken otherwise.",
        )
    return total


def _text_size(llm: EvalModel, windows: Sequence[Window]) -> tuple[int, int]:
    """Return (bytes, words) of the scored text; a word cut by a window's edge counts as one."""
    num_bytes = num_words = 0
    for window in windows:
        text = b"".join(llm.tokenizer.token_bytes(i) for i in window.scored_ids)
        num_bytes += len(text)
        num_words += len(text.split())
    if not num_words:
        raise MeasurementError(
            "The scored text has no words.",
            field="windows",
            value=num_bytes,
            remedy="Score text that is not whitespace alone.",
        )
    return num_bytes, num_words
