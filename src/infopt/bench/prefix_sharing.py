"""What a prefix cache can save: the sharing in a workload, and the FLOPs behind it.

A page is shared when an earlier prompt began with the same tokens up to the page's end. With room
for everything, the share of prompt tokens in such pages is the best hit rate there is; what a real
pool reaches below that is lost to eviction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from infopt.models.config import ModelConfig


def shareable_tokens(prompts: Iterable[Sequence[int]], block_size: int) -> list[int]:
    """Return, per prompt, the tokens that a cache without limits would find.

    Whole pages only, and at least one token is always computed.

    Args:
        prompts: Token ids in order of arrival; each is complete before the next one comes.
        block_size: Tokens per page.
    """
    seen: set[tuple[int, ...]] = set()
    found = []
    for prompt in prompts:
        ends = range(block_size, len(prompt) + 1, block_size)
        keys = [tuple(prompt[:end]) for end in ends]
        usable = keys[: (len(prompt) - 1) // block_size]
        found.append(next((i for i, k in enumerate(usable) if k not in seen), len(usable)))
        seen.update(keys)
    return [count * block_size for count in found]


def prefill_flops(config: ModelConfig, num_tokens: int) -> float:
    """Return the FLOPs of the layers over the first so many tokens of a prompt.

    2 * weights * T + 4 * query width * (pairs of full layers + pairs of window layers); a token at
    position i attends to i + 1 keys, in a window layer to at most its window.
    """
    top_k = 0 if config.moe is None else config.moe.top_k
    weights = config.num_layers * config.attention_parameters + config.mlp_parameters(top_k)
    num_full = config.layer_kinds.count("full")
    pairs = num_full * _pairs(num_tokens, None)
    pairs += (config.num_layers - num_full) * _pairs(num_tokens, config.sliding_window)
    return 2.0 * weights * num_tokens + 4.0 * config.query_size * pairs


def saved_share(config: ModelConfig, lengths: Sequence[int], cached: Sequence[int]) -> float:
    """Return the share of prefill FLOPs that cached beginnings save.

    Args:
        config: The model.
        lengths: Tokens per prompt.
        cached: Of those, found in the cache; they lie at the beginning.
    """
    total = sum(prefill_flops(config, n) for n in lengths)
    return sum(prefill_flops(config, n) for n in cached) / total


def _pairs(num_tokens: int, window: int | None) -> int:
    """Return how many (query, key) pairs a causal layer computes."""
    full = num_tokens if window is None else min(num_tokens, window)
    rest = 0 if window is None else (num_tokens - full) * window
    return full * (full + 1) // 2 + rest
