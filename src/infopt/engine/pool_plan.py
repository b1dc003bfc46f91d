"""How much memory of the KV budget goes where: pages of both forms, and room to swap them."""

from __future__ import annotations

from dataclasses import dataclass

from infopt.cache.groups import KVLayout
from infopt.cache.quantized_pages import PageNeed, QuantizedLayout
from infopt.config import EngineConfig
from infopt.errors import CapacityError
from infopt.ops.kv_quantization import KVFormat

MAX_FULL_SHARE = 0.5
"""Most of the budget that full-precision pages take beside quantized ones, as long as one sequence
fits: beyond it, quantizing would save little."""

PREFIX_SLACK = 0.5
"""Full-precision pages kept for the ends of cached prefixes, as a share of what running sequences
hold in their residuals. Without a prefix cache there are none."""


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """What a drafter takes of the budget.

    Attributes:
        bytes_per_token: Of its own for each token in the pools.
        scratch_pages: Full-precision pages per KV group that belong to no pool.
    """

    bytes_per_token: float = 0.0
    scratch_pages: int = 0


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Sizes of the pools.

    Attributes:
        pages: Usable pages of both forms.
        swap: Host pages for each of them.
        tokens: Longest sequence they hold, at most ``max_model_len``.
        capacity: Tokens of all sequences that they hold, about.
        scratch: Full-precision pages behind those of the pool.
    """

    pages: PageNeed
    swap: PageNeed
    tokens: int
    capacity: int
    scratch: int


@dataclass(frozen=True, slots=True)
class PoolPlanner:
    """Plans the pools of one model.

    Attributes:
        config: Budget and limits.
        layout: KV groups and page shape.
        quantized: What is quantized; None keeps all rows in one form.
        max_model_len: Longest sequence.
        draft: What a drafter takes; with ``num_kv_pages`` it comes on top of them.
    """

    config: EngineConfig
    layout: KVLayout
    quantized: QuantizedLayout | None
    max_model_len: int
    draft: DraftMemory = DraftMemory()

    def plan(self) -> PoolPlan:
        """Return the sizes.

        Raises:
            CapacityError: If the budget does not hold one token.
        """
        pages = self._plain_pages() if self.quantized is None else self._pages_of(self.quantized)
        swap = self._swap_pages(pages)
        return PoolPlan(pages, swap, self._tokens(pages), self._capacity(pages), self._scratch)

    @property
    def _scratch(self) -> int:
        return self.draft.scratch_pages * len(self.layout.groups)

    @property
    def _budget(self) -> int:
        """Bytes for pools and the drafter's own tokens."""
        whole = int(self.config.kv_cache_memory_gib * 2**30)
        return max(whole - self._scratch * self.layout.page_bytes, 0)

    def _capacity(self, pages: PageNeed) -> int:
        full = pages.full * self.layout.block_size // len(self.layout.groups)
        if self.quantized is None:
            return full
        groups = max(pages.quantized // max(self.quantized.num_groups, 1), 0)
        return full + groups * self.quantized.format.group_size

    def _max_pages(self, num_tokens: int, max_chunk: int) -> PageNeed:
        if self.quantized is None:
            return PageNeed(self.layout.max_pages(num_tokens, max_chunk))
        return self.quantized.max_pages(num_tokens, max_chunk)

    def _plain_pages(self) -> PageNeed:
        """Return the size of the only pool, never more than all sequences could use."""
        config, layout = self.config, self.layout
        if config.num_kv_pages is not None:
            num_pages = config.num_kv_pages
        else:
            share = self.draft.bytes_per_token * config.block_size / len(layout.groups)
            fits = int(self._budget // (layout.page_bytes + share))
            longest = layout.max_pages(self.max_model_len, config.max_num_batched_tokens)
            num_pages = min(fits, 2 * config.max_num_seqs * longest)
        if num_pages < len(layout.groups):
            raise self._too_small(num_pages, len(layout.groups))
        return PageNeed(num_pages)

    def _pages_of(self, quantized: QuantizedLayout) -> PageNeed:
        """Divide the budget: full pages for what sequences keep in them, the rest quantized."""
        config, page_bytes = self.config, self.layout.page_bytes
        own = quantized.bytes_per_token
        budget = int(self._budget * own / (own + self.draft.bytes_per_token))
        if config.num_kv_pages is not None:
            budget = config.num_kv_pages * page_bytes
        one = quantized.max_pages(self.max_model_len, config.max_num_batched_tokens)
        resting = quantized.max_pages(self.max_model_len, 1).full
        slack = PREFIX_SLACK if config.enable_prefix_caching else 0.0
        wanted = one.full + int(config.max_num_seqs * resting * (1 + slack))
        full = min(wanted, max(one.full, int(budget * MAX_FULL_SHARE) // page_bytes))
        full = min(full, budget // page_bytes)
        if full < len(self.layout.groups):
            raise self._too_small(full, len(self.layout.groups))
        fits = (budget - full * page_bytes) // quantized.page_bytes
        return PageNeed(full, min(fits, 2 * config.max_num_seqs * one.quantized))

    def _swap_pages(self, pages: PageNeed) -> PageNeed:
        """Return the host pages for swapping.

        Nobody new is admitted while someone is swapped out, so at most ``max_num_seqs`` are.
        """
        config = self.config
        if config.preemption != "swap":
            return PageNeed()
        longest = self._max_pages(self.max_model_len, config.max_num_batched_tokens)
        full = config.max_num_seqs * min(longest.full, pages.full)
        budget = int(config.swap_memory_gib * 2**30)
        if self.quantized is None:
            return PageNeed(min(budget // self.layout.page_bytes, full))
        old = config.max_num_seqs * min(longest.quantized, pages.quantized)
        wanted = full * self.layout.page_bytes + old * self.quantized.page_bytes
        share = min(1.0, budget / wanted) if wanted else 1.0
        return PageNeed(int(full * share), int(old * share))

    def _tokens(self, pages: PageNeed) -> int:
        """Return the longest sequence that the pools hold, at most ``max_model_len``."""
        low, high = 0, self.max_model_len
        while low < high:  # needs grow with the length
            middle = (low + high + 1) // 2
            need = self._max_pages(middle, self.config.max_num_batched_tokens)
            if need.full <= pages.full and need.quantized <= pages.quantized:
                low = middle
            else:
                high = middle - 1
        return low

    def _too_small(self, num_pages: int, needed: int) -> CapacityError:
        return CapacityError(
            f"the KV pool has {num_pages} pages of {self.layout.page_bytes} bytes; one token needs "
            f"{needed}.",
            field="kv_cache_memory_gib",
            value=self.config.kv_cache_memory_gib,
            remedy="Raise kv_cache_memory_gib or num_kv_pages.",
        )


def kv_format(config: EngineConfig, longest_draft: int) -> KVFormat | None:
    """Return how old rows are kept, None for ``kv_cache_dtype="auto"``.

    Raises:
        ConfigError: If pages, row groups, residual and drafts do not go together.
    """
    if config.kv_cache_dtype == "auto":
        return None
    fmt = KVFormat(config.kv_cache_dtype, config.kv_group_size, config.kv_residual)
    fmt.check(config.block_size, longest_draft)
    return fmt


def quantized_layout(layout: KVLayout, fmt: KVFormat | None) -> QuantizedLayout | None:
    """Return what is quantized.

    Raises:
        ConfigError: If heads cannot be cut into words of codes.
    """
    if fmt is None:
        return None
    fmt.check_head_dim(layout.head_dim)
    return QuantizedLayout(layout, fmt)
