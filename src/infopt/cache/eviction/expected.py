"""Expected attention (arXiv 2510.00636): what queries to come will probably look at.

Queries before rotation are taken for Gaussian with the mean and covariance of the prompt's. With
``R`` the mean rotation over the positions to come, a future query is ``N(R mu, R C R')``, so

    E[exp(q k s)] = exp(s (R mu) k + s^2 k' (R C R') k / 2)

Its softmax over the rows, mean over the query heads of a key head, times the length of the value is
the score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from infopt.cache.eviction.attention import mean_over_shared
from infopt.cache.eviction.press import PRESSES, LayerRows, Press, check_count, check_flag

_ALWAYS = float("inf")


@PRESSES.register("expected_attention")
@dataclass(frozen=True)
class ExpectedAttention(Press):
    """Expected attention times the length of values.

    Attributes:
        window: Newest queries that statistics are made of.
        future: Positions to come that are averaged over.
        sinks: First tokens; they stay, and their queries do not count.
        covariance: Whether the second term is used.
        value_norm: Whether scores are multiplied by the length of values.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"keys", "values", "queries"})
    query_aware: ClassVar[bool] = False

    window: int = 512
    future: int = 512
    sinks: int = 4
    covariance: bool = True
    value_norm: bool = True

    def __post_init__(self) -> None:
        """Check options.

        Raises:
            ConfigError: Names option and value.
        """
        check_count("window", self.window, 2)
        check_count("future", self.future, 1)
        check_count("sinks", self.sinks, 0)
        check_flag("covariance", self.covariance)
        check_flag("value_norm", self.value_norm)

    @property
    def query_window(self) -> int:
        """As many as the statistics want."""
        return self.window

    @property
    def num_future(self) -> int:
        """As many as are averaged over."""
        return self.future

    @property
    def min_rows(self) -> int:
        """Sinks and one more."""
        return self.sinks + 1

    def score(self, rows: LayerRows) -> torch.Tensor:
        """Return what rows can expect; sinks stay."""
        mean, spread = self._future_queries(rows)
        keys = rows.keys[:, self.sinks :]
        share = rows.queries.shape[0] // rows.num_kv_heads
        keys = keys.repeat_interleave(share, 0)
        logits = torch.matmul(keys, mean.unsqueeze(-1)).squeeze(-1) * rows.scale
        if self.covariance:
            logits += (torch.matmul(keys, spread) * keys).sum(-1) * (rows.scale**2 / 2)
        scores = mean_over_shared(logits.softmax(-1), rows.num_kv_heads)
        if self.value_norm:
            scores = scores * rows.values[:, self.sinks :].norm(dim=-1)
        return F.pad(scores, (self.sinks, 0), value=_ALWAYS)

    def _future_queries(self, rows: LayerRows) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean ``(num_heads, head_dim)`` and covariance of the queries to come."""
        counted = rows.query_positions >= self.sinks
        at = rows.query_positions[counted].to(rows.cos.device)
        # Rotating by the opposite angle takes the rotation back.
        cos, sin = rows.cos[at], rows.sin[at]
        length = cos**2 + sin**2  # 1, but for families whose rotation also stretches
        plain = _rotate(rows.queries[:, counted], cos / length, -sin / length)
        mean = plain.mean(1)
        centred = plain - mean.unsqueeze(1)
        spread = torch.matmul(centred.transpose(1, 2), centred) / plain.shape[1]
        to_come = slice(rows.next_position, rows.next_position + self.future)
        turn = _mean_rotation(rows.cos[to_come], rows.sin[to_come])
        return mean @ turn.T, turn @ spread @ turn.T


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate ``(num_heads, num_tokens, head_dim)`` by ``(num_tokens, head_dim / 2)``."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _mean_rotation(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return the matrix ``(head_dim, head_dim)`` that applies the mean of some rotations."""
    half = cos.shape[1]
    basis = torch.eye(2 * half, device=cos.device)
    # Rows of the rotated basis are columns of the matrix.
    angles = cos.mean(0).expand(2 * half, half), sin.mean(0).expand(2 * half, half)
    return _rotate(basis[None], *angles)[0].T
