"""Chooses tokens where guesses were drawn from a distribution (arXiv 2211.17192, 2302.01318).

A guess x that was drawn from q is kept with probability min(1, p(x) / q(x)), p being what the model
draws from; else the token is drawn from max(p - q, 0), normalised. The token follows p, whatever q
is, as long as q is what the guess was really drawn from: so both have gone through the same bias,
penalties, masks, temperature and filters.

Each output position has three random numbers of its request's own: one draws the guess, one keeps
it or not, one draws the token in its place. Nothing that shares the batch changes them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from infopt.engine.sampler import SamplingRow, probabilities, process_logits, sample, uniform
from infopt.ops.sampling import DrawTokens, pick

GUESS_STREAM = b"guess"
_KEEP_STREAM = b"keep"


class Guess(NamedTuple):
    """A guess that was drawn.

    Attributes:
        token_id: The guess.
        law: What it was drawn from, weights ``(vocab_size,)``, not normalised.
    """

    token_id: int
    law: torch.Tensor


def choose(
    logits: torch.Tensor,
    rows: list[SamplingRow],
    guesses: list[Guess | None],
    draw: DrawTokens,
) -> list[int]:
    """Choose one token per row.

    Args:
        logits: float32 ``(num_rows, vocab_size)``; not changed.
        rows: One per row of ``logits``.
        guesses: One per row; None where nothing was drawn for it.
        draw: The op that draws where there is no guess.

    Returns:
        Token ids: of rows with a guess, the guess itself if, and only if, it is kept.
    """
    judged = [
        (i, guess)
        for i, (row, guess) in enumerate(zip(rows, guesses, strict=True))
        if guess is not None and not row.params.is_greedy
    ]
    if not judged:
        return sample(logits, rows, draw)
    places = [i for i, _ in judged]
    chosen = _judge(logits[places], [rows[i] for i in places], [guess for _, guess in judged])
    tokens = dict(zip(places, chosen, strict=True))
    others = [i for i in range(len(rows)) if i not in tokens]
    found = sample(logits[others], [rows[i] for i in others], draw) if others else []
    tokens |= dict(zip(others, found, strict=True))
    return [tokens[i] for i in range(len(rows))]


def _judge(logits: torch.Tensor, rows: list[SamplingRow], guesses: list[Guess]) -> list[int]:
    target = _normalised(probabilities(process_logits(logits, rows), rows))
    draft = _normalised(torch.stack([guess.law for guess in guesses]).double())
    tokens = [guess.token_id for guess in guesses]
    ids = torch.tensor(tokens, device=logits.device).unsqueeze(1)
    p, q = target.gather(1, ids).squeeze(1), draft.gather(1, ids).squeeze(1)
    numbers = [uniform(row.seed, row.num_output_tokens, _KEEP_STREAM) for row in rows]
    # A product, not a quotient: nothing is divided by a q of zero.
    kept = torch.tensor(numbers, dtype=torch.float64, device=logits.device) * q < p
    refused = [i for i, is_kept in enumerate(kept.tolist()) if not is_kept]
    if refused:
        instead = _draw_residual(target[refused], draft[refused], [rows[i] for i in refused])
        for i, token in zip(refused, instead, strict=True):
            tokens[i] = token
    return tokens


def _draw_residual(target: torch.Tensor, draft: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    """Draw from what the target has above the draft; from all it has where that is nothing."""
    excess = (target - draft).clamp_min(0.0)
    has_excess = excess.sum(dim=-1, keepdim=True) > 0
    numbers = [uniform(row.seed, row.num_output_tokens) for row in rows]
    return pick(torch.where(has_excess, excess, target), numbers)


def _normalised(weights: torch.Tensor) -> torch.Tensor:
    """Divide rows by their sums; a row without any mass, or of NaN, is all zero."""
    weights = torch.nan_to_num(weights, nan=0.0)
    return weights / weights.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
