"""Runs forty tokens in two ways, before a model is used.

A family may hand something to its cache or its attention in a way that nobody has seen before, or
look at later tokens. Then the answers differ, and the model is refused instead of running with it.
"""

from __future__ import annotations

from typing import Any

import torch

from infopt.errors import UnsupportedModelError
from infopt.models.fallback import attention
from infopt.models.fallback.parts import LayerPartPages, LayerParts, PartPages
from infopt.ops import ForwardContext, GroupContext

NUM_TOKENS = 40
CHUNK = 25
MAX_ERROR = {torch.float32: 1e-3}
MAX_ROUNDED_ERROR = 5e-2
"""For types that round: a router may send a token elsewhere, so the median of all tokens counts."""


def check_pages(model: Any, base: Any, text: Any) -> float:
    """Return the error of pages against transformers alone.

    It is the median over tokens of max |difference| / max |state| of the final hidden states.

    Args:
        model: The `TransformersModel`.
        base: Its decoder.
        text: The decoder's configuration.

    Raises:
        UnsupportedModelError: If it is too large.
    """
    ids = _ids(model)
    ours = _through_pages(model, ids)
    base.set_attn_implementation("eager")
    try:
        theirs = _alone(base, text, _chunks(ids))
    finally:
        base.set_attn_implementation(attention.NAME)
    return _checked(model, ours, theirs, "on the engine's pages differs from transformers")


def check_states(model: Any, base: Any, text: Any) -> float:
    """Return the error of two chunks against all at once, with transformers' own cache.

    Args:
        model: The `TransformersModel`.
        base: Its decoder.
        text: The decoder's configuration.

    Raises:
        UnsupportedModelError: If it is too large: a token sees later ones, or no cache is kept.
    """
    ids = _ids(model)
    parts, whole = _alone(base, text, _chunks(ids)), _alone(base, text, [(0, ids)])
    return _checked(model, parts, whole, "in two chunks differs from one")


def _ids(model: Any) -> torch.Tensor:
    return (torch.arange(NUM_TOKENS) * 7919 % model.config.num_real_tokens).to(model.device)


def _checked(model: Any, ours: torch.Tensor, theirs: torch.Tensor, what: str) -> float:
    error = float(((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)).median())
    limit = MAX_ERROR.get(model.dtype, MAX_ROUNDED_ERROR)
    if not error <= limit:
        raise UnsupportedModelError(
            f"{model.config.family} {what} by {error:.2g} of the largest value, the limit is "
            f"{limit:g}.",
            field="model_type",
            value=model.config.family,
            remedy="Run this family with transformers itself.",
        )
    return error


@torch.inference_mode()
def _alone(base: Any, text: Any, chunks: list[tuple[int, torch.Tensor]]) -> torch.Tensor:
    from transformers.cache_utils import DynamicCache

    cache, states = DynamicCache(config=text), []
    for start, chunk in chunks:
        positions = torch.arange(start, start + len(chunk), device=chunk.device)[None]
        out = base(
            input_ids=chunk[None], position_ids=positions, past_key_values=cache, use_cache=True
        )
        states.append(out.last_hidden_state[0])
    return torch.cat(states).float()


def _through_pages(model: Any, ids: torch.Tensor) -> torch.Tensor:
    windows = sorted({layer.window for layer in model.layers_cache if layer.parts}, key=str)
    block = model.block_size
    table = torch.arange(1, -(-NUM_TOKENS // block) + 1, device=ids.device)[None]
    pages = {
        index: _pages(layer, windows.index(layer.window), block, table.numel() + 1, model)
        for index, layer in enumerate(model.layers_cache)
        if layer.parts
    }
    states = []
    for start, chunk in _chunks(ids):
        positions = torch.arange(start, start + len(chunk), device=ids.device)
        slots = table[0, positions // block] * block + positions % block
        groups = [GroupContext(table.int(), slots, window) for window in windows]
        ctx = ForwardContext(
            input_ids=chunk,
            positions=positions,
            query_starts=[0, len(chunk)],
            context_lens=[start + len(chunk)],
            num_decodes=0,
            groups=groups,
            logit_rows=positions[:0],
        )
        states.append(model.forward_hidden(ctx, pages))
    return torch.cat(states).float()


def _pages(
    layer: LayerParts, group: int, block_size: int, num_pages: int, model: Any
) -> LayerPartPages:
    parts = {
        part.name: PartPages(
            part,
            torch.zeros(
                (num_pages, block_size, part.values_per_token),
                dtype=model.dtype,
                device=model.device,
            ),
        )
        for part in layer.parts
    }
    return LayerPartPages(group, parts)


def _chunks(ids: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    return [(0, ids[:CHUNK]), (CHUNK, ids[CHUNK:])]
