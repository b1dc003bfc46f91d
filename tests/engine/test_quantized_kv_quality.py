"""Why keys are coded per channel and values per token: measured on the real model's own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM
from infopt.corpus import docs_text
from infopt.ops.kv_quantization import KVFormat, decode, encode
from infopt.ops.layer_stack import OpByOpStack

NUM_ROWS = 256
"""Coded rows; 64 queries follow them."""


@pytest.fixture(scope="module")
def layers(smollm2_path: Path) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Queries, keys and values of each layer, float32 ``(heads, tokens, head_dim)``."""
    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    with LLM(str(smollm2_path), dtype="float32", max_num_batched_tokens=512, max_num_seqs=1) as llm:
        runner = llm.engine.runner
        ops, ids = runner.model.ops, llm.tokenizer.encode(docs_text()[:4000])[: NUM_ROWS + 64]

        def spy(q: torch.Tensor, pages: Any, ctx: Any, group: Any, *rest: Any) -> torch.Tensor:
            table = group.block_tables[0].long()
            parts = [p[table].transpose(0, 1).flatten(1, 2) for p in (pages.keys, pages.values)]
            seen.append((q.transpose(0, 1), *(part[:, : len(ids)] for part in parts)))
            return ops.attention(q, pages, ctx, group, *rest)

        def stack(spec: Any, pages: Any, ops: Any) -> OpByOpStack:
            return OpByOpStack(spec, pages, ops, "queries are looked at")

        with runner.using_ops(dataclasses.replace(ops, attention=spy, layer_stack=stack)):
            llm.engine.all_logits(ids)
    return seen


def coded(x: torch.Tensor, dtype: str, per: str) -> torch.Tensor:
    """Code the first rows ``(heads, rows, head_dim)`` in groups of 64 and return what they become.

    A page codes keys per channel and values per token: the same numbers are given as both.
    """
    fmt = KVFormat(dtype, 64)
    old = x[:, :NUM_ROWS].unflatten(1, (-1, 64))
    got = decode(encode(old, old, fmt), fmt, x.shape[-1])
    part = got.keys if per == "channel" else got.values
    return torch.cat((part.flatten(1, 2), x[:, NUM_ROWS:]), dim=1)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Outputs of the queries behind the coded rows."""
    share = q.shape[0] // k.shape[0]
    k, v = (part.repeat_interleave(share, 0) for part in (k, v))
    scores = q[:, NUM_ROWS:] @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    hidden = torch.arange(k.shape[1]) > torch.arange(NUM_ROWS, k.shape[1])[:, None]
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", ["int4", "int2"])
def test_keys_are_closer_per_channel(layers: list[Any], dtype: str) -> None:
    errors = {
        per: sum(relative_error(coded(k, dtype, per), k) for _, k, _ in layers) / len(layers)
        for per in ("channel", "token")
    }
    assert errors["channel"] < 0.8 * errors["token"], errors


@pytest.mark.parametrize("dtype", ["int4", "int2"])
def test_outputs_are_closer_with_values_per_token(layers: list[Any], dtype: str) -> None:
    errors = {
        per: sum(
            relative_error(attended(q, k, coded(v, dtype, per)), attended(q, k, v))
            for q, k, v in layers
        )
        / len(layers)
        for per in ("channel", "token")
    }
    assert errors["token"] < errors["channel"], errors
