"""Presses that look at the attention that rows get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from infopt.cache.eviction.attention import mean_over_shared
from infopt.cache.eviction.press import PRESSES, LayerRows, Press, check_count, check_share
from infopt.errors import ConfigError

_ALWAYS = float("inf")
_LOOKS = frozenset({"keys", "queries"})


@PRESSES.register("tova")
@dataclass(frozen=True)
class Tova(Press):
    """TOVA (arXiv 2401.06104): the attention of the newest token, mean over all heads.

    All key heads keep the same rows, the newest among them.
    """

    needs: ClassVar[frozenset[str]] = _LOOKS
    query_aware: ClassVar[bool] = True
    decodes: ClassVar[bool] = True

    @property
    def query_window(self) -> int:
        """The newest alone."""
        return 1

    def score(self, rows: LayerRows) -> torch.Tensor:
        """Return the same scores for each key head."""
        scores = rows.weights[:, -1].mean(0)
        scores[-1] = _ALWAYS
        return scores.expand(rows.num_kv_heads, -1)


@PRESSES.register("h2o")
@dataclass(frozen=True)
class H2O(Press):
    """Heavy hitters (arXiv 2306.14048): the attention of all queries so far, and the newest rows.

    A row's attention is divided by the number of queries that saw it: a plain sum would keep old
    rows because they are old.

    Attributes:
        recent: Share of the budget for the newest rows.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"keys", "queries", "attention"})
    query_aware: ClassVar[bool] = False
    decodes: ClassVar[bool] = True
    accumulates: ClassVar[bool] = True

    recent: float = 0.5

    def __post_init__(self) -> None:
        """Check options.

        Raises:
            ConfigError: Names option and value.
        """
        check_share("recent", self.recent, closed=True)

    def score(self, rows: LayerRows) -> torch.Tensor:
        """Return the mean attention; the newest rows stay."""
        assert rows.attention is not None
        scores = rows.attention.clone()
        num_recent = min(int(self.recent * rows.num_kept), rows.num_rows)
        scores[:, rows.num_rows - num_recent :] = _ALWAYS
        return scores


@PRESSES.register("snapkv")
@dataclass(frozen=True)
class SnapKV(Press):
    """SnapKV (arXiv 2404.14469): the attention of the last ``window`` queries, smoothed.

    The window itself stays; a prompt within the window is not compressed.

    Attributes:
        window: Newest tokens that vote.
        kernel: Rows that are averaged over, an odd number.
    """

    needs: ClassVar[frozenset[str]] = _LOOKS
    query_aware: ClassVar[bool] = True

    window: int = 64
    kernel: int = 5

    def __post_init__(self) -> None:
        """Check options.

        Raises:
            ConfigError: Names option and value.
        """
        check_count("window", self.window, 1)
        check_count("kernel", self.kernel, 1)
        if self.kernel % 2 == 0:
            raise ConfigError(
                f"kv_eviction: kernel must be odd, got {self.kernel}.",
                field="kv_eviction.kernel",
                value=self.kernel,
            )

    @property
    def query_window(self) -> int:
        """The voters."""
        return self.window

    @property
    def min_rows(self) -> int:
        """The voters."""
        return self.window

    def score(self, rows: LayerRows) -> torch.Tensor:
        """Return the votes for rows before the window, each key head apart."""
        before = rows.num_rows - self.window
        votes = rows.weights[:, :, :before].mean(1)
        smooth = F.avg_pool1d(votes[None], self.kernel, stride=1, padding=self.kernel // 2)[0]
        scores = mean_over_shared(smooth, rows.num_kv_heads)
        return F.pad(scores, (0, self.window), value=_ALWAYS)
