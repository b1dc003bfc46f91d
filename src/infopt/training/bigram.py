"""The baseline that a trained model has to beat: a bigram with Kneser-Ney smoothing.

With c(a, b) the number of times b follows a, D the discount, and N1+(a .) the number of different
tokens that follow a::

    p(b | a) = max(c(a, b) - D, 0) / c(a) + D * N1+(a .) / c(a) * q(b)
    q(b)     = (N1+(. b) + 1) / sum over all tokens of the same
    D        = n1 / (n1 + 2 * n2)      n1, n2: pairs that occur once, twice

The added 1 gives tokens that follow nothing a probability, so that no perplexity is infinite.
"""

from __future__ import annotations

import numpy as np


class Bigram:
    """Smoothed probabilities of a token after another.

    Args:
        tokens: Ids to learn from, shape (num_tokens,).
        vocab_size: Number of tokens there are.

    Attributes:
        probabilities: p(column | row), float64, shape (vocab_size, vocab_size); rows sum to 1.
    """

    def __init__(self, tokens: np.ndarray, vocab_size: int) -> None:
        """Count and smooth."""
        counts = np.zeros((vocab_size, vocab_size))
        np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
        self.probabilities = _smooth(counts)

    def nll(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Return -log p(after | before) in nats, elementwise."""
        return -np.log(self.probabilities[before, after])


def _smooth(counts: np.ndarray) -> np.ndarray:
    seen = counts > 0
    backoff = seen.sum(axis=0) + 1.0
    backoff /= backoff.sum()
    total = counts.sum(axis=1, keepdims=True)
    discount = _discount(counts)
    left_over = discount * seen.sum(axis=1, keepdims=True)
    smoothed = np.maximum(counts - discount, 0) + left_over * backoff
    return np.where(total > 0, smoothed / np.maximum(total, 1), backoff)


def _discount(counts: np.ndarray) -> float:
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    # Without rare pairs (a text of a few tokens) there is nothing to estimate it from.
    return once / (once + 2 * twice) if once else 0.5
