"""Perplexity on the held-out text, beside that of the smoothed bigram on the same tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from infopt.training.bigram import Bigram

WINDOW = 512
"""Tokens per window; all but the first are predicted."""

_ROWS = 8  # windows at once


@dataclass(frozen=True, slots=True)
class Validation:
    """Perplexity of a model and of the bigram.

    Attributes:
        num_tokens: Tokens that were predicted.
        perplexity: exp of the mean -log p of the model.
        bigram_perplexity: The same of the bigram.
    """

    num_tokens: int
    perplexity: float
    bigram_perplexity: float

    @property
    def share(self) -> float:
        """The model's perplexity as a share of the bigram's."""
        return self.perplexity / self.bigram_perplexity

    def to_dict(self) -> dict[str, float]:
        """Return plain data for a record."""
        return {
            "num_tokens": self.num_tokens,
            "perplexity": round(self.perplexity, 3),
            "bigram_perplexity": round(self.bigram_perplexity, 3),
            "share": round(self.share, 4),
        }


def cut_windows(tokens: np.ndarray, max_windows: int | None = None) -> np.ndarray:
    """Cut a stream into windows that do not overlap; the rest at the end is dropped.

    Args:
        tokens: Shape (num_tokens,).
        max_windows: Keep this many, evenly spaced.

    Returns:
        Shape (num_windows, WINDOW).
    """
    windows = tokens[: len(tokens) // WINDOW * WINDOW].reshape(-1, WINDOW)
    if max_windows is None or max_windows >= len(windows):
        return windows
    return windows[np.linspace(0, len(windows) - 1, max_windows).round().astype(int)]


def validate(model: Any, bigram: Bigram, windows: np.ndarray) -> Validation:
    """Score windows with both.

    Args:
        model: A causal model of transformers.
        bigram: The baseline.
        windows: Shape (num_windows, WINDOW).
    """
    baseline = bigram.nll(windows[:, :-1], windows[:, 1:])
    return Validation(
        num_tokens=baseline.size,
        perplexity=math.exp(model_nll(model, windows).mean()),
        bigram_perplexity=math.exp(baseline.mean()),
    )


def model_nll(model: Any, windows: np.ndarray) -> np.ndarray:
    """Return a model's -log p in nats, shape (num_windows, WINDOW - 1)."""
    return np.concatenate([_nll(model, ids).numpy() for ids in _batches(windows)])


def routing_shares(model: Any, windows: np.ndarray) -> list[list[float]]:
    """Return the share of tokens' assignments per expert, for each layer that has experts."""
    from infopt.training.losses import expert_shares

    top_k = model.config.num_experts_per_tok
    with torch.inference_mode():
        outputs = [model(input_ids=i, output_router_logits=True) for i in _batches(windows)]
    layers: Sequence[Any] = list(zip(*(output.router_logits for output in outputs), strict=True))
    shares = [expert_shares(torch.cat(layer), top_k) for layer in layers]
    return [[round(float(value), 4) for value in share] for share in shares]


def _batches(windows: np.ndarray) -> Iterator[torch.Tensor]:
    return iter(torch.from_numpy(windows).split(_ROWS))


@torch.inference_mode()
def _nll(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logprobs = model(input_ids=ids, use_cache=False).logits[:, :-1].float().log_softmax(-1)
    return -logprobs.gather(-1, ids[:, 1:, None]).squeeze(-1)
