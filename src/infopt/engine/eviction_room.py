"""Room that sequences with eviction need: pages to copy to, and host memory to be swapped to."""

from __future__ import annotations

from infopt.cache.eviction import EvictionState
from infopt.cache.hashing import PageKey
from infopt.cache.manager import CacheManager
from infopt.cache.quantized_pages import PageNeed
from infopt.engine.sequence import Sequence


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
