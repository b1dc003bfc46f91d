"""Facts about an engine that are fixed when it is loaded; statistics and records show them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from infopt.cache.pages import PageStore
from infopt.models.decoder import Decoder
from infopt.ops.invariance import find_variant_linear
from infopt.ops.linear import Linear

logger = logging.getLogger(__name__)


def describe_engine(
    model: Decoder, store: PageStore, max_model_len: int, pool_tokens: int
) -> dict[str, object]:
    """Return device, types, ops, pages and weights as plain data, and whether bits are invariant.

    Args:
        model: The decoder.
        store: Page memory of both forms.
        max_model_len: Most tokens of prompt and output.
        pool_tokens: Most tokens of one sequence that the pool holds.
    """
    invariant: bool | None = None
    violation = None
    if model.dtype == torch.float32:
        violation = find_variant_linear(_kinds_of(model.linears[:-1]), model.device)
        invariant = violation is None
        if violation is not None:
            logger.warning("not batch-invariant on this machine: %s", violation)
    return {
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "num_threads": torch.get_num_threads(),
        "ops": model.describe_ops(),
        "batch_invariant": invariant,
        "batch_invariance_violation": violation,
        "max_model_len": max_model_len,
        "pool_tokens": pool_tokens,
        **_describe_pages(store),
        "weights_bytes": model.weight_bytes,
        "bytes_per_weight": model.bytes_per_weight,
    }


def _describe_pages(store: PageStore) -> dict[str, object]:
    """Return pages and bytes of both forms; a token costs what it costs once it is old."""
    layout, old = store.layout, store.quantized
    described: dict[str, object] = {
        "num_kv_pages": store.num_pages,
        "num_kv_groups": len(layout.groups),
        "page_bytes": layout.page_bytes,
        "kv_pool_bytes": store.num_bytes,
        "kv_bytes_per_token": layout.bytes_per_token,
        "kv_cache": {"dtype": "auto"},
    }
    if old is None:
        return described
    return described | {
        "kv_pool_bytes": store.num_bytes + old.num_bytes,
        "kv_bytes_per_token": old.layout.bytes_per_token,
        "kv_cache": {
            "dtype": old.layout.format.dtype,
            "group_size": old.layout.format.group_size,
            "residual": old.layout.format.residual,
            "num_quantized_groups": old.layout.num_groups,
            "num_quantized_pages": old.num_pages,
            "quantized_page_bytes": old.layout.page_bytes,
            "bytes_per_new_token": layout.bytes_per_token,
            "bytes_per_old_token": old.layout.bytes_per_token,
        },
    }


def _kinds_of(linears: Sequence[Linear]) -> list[Linear]:
    """Return one product of each type and shape: equal ones run the same code."""
    kinds = {(type(x), x.in_features, x.out_features): x for x in reversed(linears)}
    return list(kinds.values())
