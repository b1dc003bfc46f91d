"""Room that sequences with eviction need: pages to copy to, and host memory to be swapped to.

Rows cannot be computed again as they were once others that they were computed over are gone. So a
sequence that loses its pages after an eviction must be swapped, and host memory for what it may
then hold is set aside when it is admitted. Before its first eviction it can be computed again like
any other.
"""

from __future__ import annotations

from infopt.cache.eviction import EvictionState
from infopt.cache.hashing import PageKey
from infopt.cache.manager import CacheManager
from infopt.cache.quantized_pages import PageNeed
from infopt.engine.sequence import Sequence
from infopt.engine.swapping import used_pages


class SwapRoom:
    """Host pages set aside for sequences that rows are evicted from."""

    def __init__(self) -> None:
        """Start with nothing set aside."""
        self._pages: dict[Sequence, PageNeed] = {}

    def enter(self, sequence: Sequence, free: PageNeed, cache: CacheManager) -> bool:
        """Set room aside for a sequence that is to be admitted; False if it must wait.

        Args:
            sequence: Any sequence; those that keep all rows need none.
            free: Free host pages.
            cache: Pages on the device.
        """
        if sequence.eviction is None or sequence in self._pages:
            return True
        num_tokens = sequence.num_prompt_tokens + sequence.max_tokens
        needed, left = (
            host_pages_for(sequence.eviction, cache, num_tokens),
            self.left_for(sequence, free),
        )
        if needed.full > left.full or needed.quantized > left.quantized:
            return False
        self._pages[sequence] = needed
        return True

    def left_for(self, sequence: Sequence, free: PageNeed) -> PageNeed:
        """Return the free host pages that a sequence may take."""
        full, quantized = free.full, free.quantized
        for other, pages in self._pages.items():
            if other is not sequence:
                full -= max(pages.full - len(used_pages(other.host_pages)), 0)
                quantized -= max(pages.quantized - len(used_pages(other.host_quantized)), 0)
        return PageNeed(full, quantized)

    def leave(self, sequence: Sequence) -> None:
        """Give back what was set aside for a sequence that has ended."""
        self._pages.pop(sequence, None)


def host_pages_for(state: EvictionState, cache: CacheManager, num_tokens: int) -> PageNeed:
    """Return the most pages that a sequence holds once rows of it have been evicted.

    Args:
        state: Its budgets.
        cache: Pages on the device.
        num_tokens: Most tokens of prompt and output.
    """
    size, need = cache.layout.block_size, PageNeed()
    old = cache.quantized.layout if cache.quantized is not None else None
    for group in range(len(cache.layout.groups)):
        rows = state.max_rows(group, num_tokens)
        full, quantized = -(-rows // size), 0
        if old is not None and old.is_quantized(group):
            full = min(full, old.format.residual // size + 2)
            quantized = old.num_row_groups(group, rows) + 1
        need += PageNeed(full, quantized)
    return need


def rows_after_eviction(sequence: Sequence) -> list[int]:
    """Return, per group, the rows that a first eviction leaves; 0 where none will come."""
    if sequence.eviction is None:
        return []
    both = zip(sequence.eviction.budgets, sequence.cache.num_evicted, strict=True)
    return [0 if evicted else budget or 0 for budget, evicted in both]


def find_prefix(cache: CacheManager, sequence: Sequence) -> list[PageKey]:
    """Return the keys of the longest cached prefix that a sequence may adopt.

    A press that reads queries needs those of its window computed. And where the whole sequence
    would not fit beside the pages that replace shared ones, nothing is shared; nor where old rows
    are quantized. Log-probabilities of the prompt need logits, which cached tokens do not have:
    what predicts the first one that is asked for is computed.
    """
    state, tokens = sequence.eviction, sequence.token_ids
    if (unscored := sequence.first_unscored) is not None:
        tokens = tokens[:unscored]  # a match leaves at least the last token
    if state is None:
        return cache.match_prefix(tokens)
    press = state.config.press
    if press.accumulates or cache.quantized is not None:
        return []
    if press.query_window:
        tokens = tokens[: max(sequence.num_prompt_tokens - press.query_window + 1, 0)]
    keys = cache.match_prefix(tokens)
    extra = sum(cache.num_to_reserve(len(keys), rows_after_eviction(sequence)))
    num_tokens = sequence.num_prompt_tokens + sequence.max_tokens
    peak = cache.layout.max_pages(num_tokens, num_tokens) + extra
    return keys if peak <= cache.pool.num_pages else []
