"""How long sequences may be and how large the pool is, whatever runs the model."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from infopt.cache.groups import KVLayout
from infopt.config import EngineConfig
from infopt.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Sizes of a pool.

    Attributes:
        layout: How pages are cut.
        num_pages: Pages on the device.
        num_swap_pages: Pages on the host.
        max_model_len: Longest sequence that is accepted.
        pool_tokens: Longest sequence that the pool holds.
    """

    layout: KVLayout
    num_pages: int
    num_swap_pages: int
    max_model_len: int
    pool_tokens: int

    def warn_if_small(self) -> None:
        """Announce that the longest sequence does not fit."""
        if self.pool_tokens < self.max_model_len:
            logger.warning(
                "the KV pool holds %d tokens of one sequence, fewer than max_model_len=%d",
                self.pool_tokens,
                self.max_model_len,
            )

    def describe(self) -> dict[str, object]:
        """Return the sizes for records."""
        return {
            "max_model_len": self.max_model_len,
            "pool_tokens": self.pool_tokens,
            "num_kv_pages": self.num_pages,
            "num_kv_groups": len(self.layout.groups),
            "page_bytes": self.layout.page_bytes,
            "kv_bytes_per_token": self.layout.bytes_per_token,
        }


def limited_length(config: EngineConfig, longest: int) -> int:
    """Return the longest sequence that is accepted.

    Args:
        config: How to run.
        longest: The model's own limit.

    Raises:
        ConfigError: If the config asks for more than the model was made for.
    """
    if config.max_model_len is None:
        return longest
    if config.max_model_len > longest:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is beyond the model's own limit of {longest}.",
            field="max_model_len",
            value=config.max_model_len,
            remedy=f"Use at most {longest}.",
        )
    return config.max_model_len
