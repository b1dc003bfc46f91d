"""Finds out what each layer of a model caches, by running one token and looking.

No table of families can go stale: whatever a module hands to its cache is what pages must hold.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicIndexedLayer, DynamicLayer

from infopt.errors import UnsupportedModelError
from infopt.models.fallback.parts import CachePart, LayerParts


@torch.inference_mode()
def probe_layers(base: torch.nn.Module, text: Any, device: torch.device) -> tuple[LayerParts, ...]:
    """Return what each layer caches per token.

    Args:
        base: The decoder without its head.
        text: Its configuration.
        device: Where it runs.
    """
    cache = DynamicCache(config=text)
    _run(base, cache, 1, device)
    has_latents = isinstance(getattr(text, "kv_lora_rank", None), int)
    return tuple(_parts(layer, has_latents) for layer in cache.layers)


@torch.inference_mode()
def probe_state_bytes(
    base: torch.nn.Module, text: Any, device: torch.device, num_tokens: int
) -> float:
    """Return the bytes per token of a state that is not one entry per token.

    Windows and compression only make later tokens cheaper, so a short text gives an upper bound.

    Args:
        base: The decoder without its head.
        text: Its configuration.
        device: Where it runs.
        num_tokens: Length of the text.
    """
    cache = DynamicCache(config=text)
    _run(base, cache, num_tokens, device)
    return sum(map(_state_bytes, cache.layers)) / num_tokens


def _run(base: torch.nn.Module, cache: Any, num_tokens: int, device: torch.device) -> None:
    ids = torch.zeros((1, num_tokens), dtype=torch.int64, device=device)
    positions = torch.arange(num_tokens, device=device)[None]
    base(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True)


def _parts(layer: Any, has_latents: bool) -> LayerParts:
    if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
        return LayerParts(())
    labels = ("latent", "rotary key") if has_latents else ("", "")
    found = [_part("keys", layer.keys, labels[0]), _part("values", layer.values, labels[1])]
    if isinstance(layer, DynamicIndexedLayer):
        if layer.indexer_position_ids is not None:
            raise UnsupportedModelError(
                "this family caches positions of index keys, which pages do not hold.",
                field="indexer_position_ids",
            )
        if layer.indexer_keys is not None:
            found.append(CachePart("index_keys", 1, layer.indexer_keys.shape[-1], "index key"))
    return LayerParts(tuple(found), getattr(layer, "sliding_window", None))


def _part(name: str, stored: torch.Tensor, label: str) -> CachePart:
    return CachePart(name, stored.shape[1], stored.shape[3], label)


def _state_bytes(layer: Any) -> int:
    return sum(tensor.nbytes for tensor in _tensors(vars(layer)))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
