"""Launches that are compiled ahead of time: each op in the shapes of Llama-3.1-8B and others.

A case calls a launcher with tensors without memory; :mod:`infopt.kernels.triton_ops.aot` records
what it would launch. Names are ``op/variant``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from infopt.kernels.triton_ops import (
    activation,
    attention,
    compact,
    grouped_linear,
    linear_fp8,
    linear_int4,
    linear_int8,
    linear_w8a8,
    quantize_kv,
    rejection,
    rms_norm,
    rotary,
    router,
)
from infopt.kernels.triton_ops.attention_old_rows import KINDS

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
_NAMES = {F32: "fp32", BF16: "bf16", F16: "fp16"}


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Return a tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def _rms_norm(size: int, dtype: torch.dtype, *, residual: bool) -> None:
    x = empty(64, size, dtype=dtype)
    rms_norm.add_rms_norm(
        x, empty(64, size, dtype=dtype) if residual else None, empty(size, dtype=F32), 1e-6
    )


def _activation(kind: str, dtype: torch.dtype) -> None:
    activation.gated_activation(empty(64, 2 * 14336, dtype=dtype), kind)


def _pages(kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    pool = empty(1024, 2, kv_heads, block_size, head_dim, dtype=dtype)
    return [pool[:, 0], pool[:, 1]]


def _rotary(head_dim: int, dtype: torch.dtype, *, norms: bool) -> None:
    qkv, half = empty(64, (32 + 16) * head_dim, dtype=dtype), (64, head_dim // 2)
    weights = (empty(head_dim, dtype=F32), empty(head_dim, dtype=F32), 1e-6) if norms else None
    rotary.rotary_and_write(
        qkv,
        empty(*half, dtype=dtype),
        empty(*half, dtype=dtype),
        *_pages(8, 16, head_dim, dtype),
        empty(64, dtype=torch.int64),
        weights,
    )


def _attention(
    head_dim: int,
    dtype: torch.dtype,
    *,
    decode: bool,
    share: int = 4,
    window: int | None = None,
    softcap: float | None = None,
    block_size: int = 16,
    old: str | None = None,
) -> None:
    q = empty(64, 8 * share, head_dim, dtype=dtype)
    shape = attention.block_shape(dtype, head_dim, share, decode=decode, old=old is not None)
    starts = list(range(65)) if decode else [0, 64]
    blocks = None
    if not decode:
        blocks = attention.plan_prefill(starts, 0, share, shape, q.device)
    attention.paged_attention(
        q,
        *_pages(8, block_size, head_dim, dtype),
        empty(64, 512, dtype=torch.int32),
        empty(64, dtype=torch.int64),
        torch.empty_like(q),
        scale=0.1,
        softcap=softcap,
        window=window,
        blocks=blocks,
        num_decodes=64,
        max_context=8192,
        split_tokens=attention.SPLIT_TOKENS if decode and dtype != F32 else None,
        old=None if old is None else _old_rows(old, 8, head_dim),
    )


def _old_rows(dtype: str, kv_heads: int, head_dim: int) -> attention.OldRows:
    bits, exponent_bits = KINDS[dtype]
    head_bytes = 128 * head_dim * bits // 8 + (0 if exponent_bits else 4 * (head_dim + 64))
    data = empty(1024, kv_heads, head_bytes, dtype=torch.uint8)
    return attention.OldRows(data, empty(64, 128, dtype=torch.int32), dtype, 64, 128)


def _quantize_kv(dtype: str, head_dim: int) -> None:
    bits = KINDS[dtype][0]
    data = empty(1024, 8, 128 * head_dim * bits // 8 + 4 * (head_dim + 64), dtype=torch.uint8)
    jobs = empty(32, 5, dtype=torch.int64)
    quantize_kv.quantize_kv(*_pages(8, 16, head_dim, BF16), jobs, data, bits, 64)


def _linear(kind: str, dtype: torch.dtype, num_rows: int) -> None:
    x, scale = empty(num_rows, 4096, dtype=dtype), empty(6144, dtype=F32)
    if kind == "int4":
        packed, scales = empty(6144, 64, 32, dtype=torch.uint8), empty(64, 6144, dtype=F16)
        linear_int4.int4_linear(x, packed, scales, torch.empty_like(scales))
    elif kind == "fp8":
        linear_fp8.fp8_linear(x, empty(6144, 4096, dtype=torch.float8_e4m3fn), scale)
    else:
        run = linear_int8.int8_linear if kind == "int8" else linear_w8a8.w8a8_linear
        run(x, empty(6144, 4096, dtype=torch.int8), scale)


def _grouped(dtype: torch.dtype, rows: int) -> None:
    num_tokens = 512
    blocks = grouped_linear.ExpertBlocks(
        empty(64 * rows, dtype=torch.int32), empty(64, dtype=torch.int32), rows, 8
    )
    x, weight = empty(num_tokens, 2048, dtype=dtype), empty(128, 1536, 2048, dtype=dtype)
    grouped_linear.grouped_linear(x, weight, blocks, empty(num_tokens * 8, dtype=F32))


def _router(**options: Any) -> None:
    num_experts = options.pop("num_experts")
    bias = empty(num_experts, dtype=F32) if options.get("scoring") == "sigmoid" else None
    router.route(empty(64, num_experts), 8, bias=bias, **options)


def _verify(*, with_draft: bool) -> None:
    draft = empty(8, 5, 151936, dtype=F32) if with_draft else None
    rejection.verify_drafts(
        empty(8, 5, dtype=torch.int64),
        empty(8, dtype=torch.int32),
        empty(8, 6, 151936, dtype=F32),
        draft,
        empty(8, 6, dtype=F32),
    )


def _compact(head_dim: int, dtype: torch.dtype) -> None:
    slots = empty(8, 512, dtype=torch.int64)
    compact.compact(*_pages(8, 16, head_dim, dtype), slots, empty(512, dtype=torch.int64))


def _attention_cases() -> dict[str, Callable[[], Any]]:
    cases: dict[str, Callable[[], Any]] = {}
    for dtype, name in _NAMES.items():
        for decode in (True, False):
            kind = "decode" if decode else "prefill"
            for head_dim in (64, 128, 256):
                run = partial(_attention, head_dim, dtype, decode=decode)
                cases[f"attention/{kind}-{name}-d{head_dim}"] = run
            run = partial(_attention, 128, dtype, decode=decode, window=1024, softcap=50.0)
            cases[f"attention/{kind}-{name}-d128-window-softcap"] = run
            for old in KINDS if name == "bf16" else ("int8",):
                run = partial(_attention, 128, dtype, decode=decode, old=old)
                cases[f"attention/{kind}-{name}-d128-{old}-pages"] = run
    return cases


CASES: dict[str, Callable[[], Any]] = {
    **{
        f"rms_norm/{name}-{size}{'-residual' * residual}": partial(
            _rms_norm, size, dtype, residual=residual
        )
        for dtype, name in _NAMES.items()
        for size in (1024, 4096)
        for residual in (False, True)
    },
    **{
        f"activation/{kind}-{name}": partial(_activation, kind, dtype)
        for dtype, name in _NAMES.items()
        for kind in activation.KINDS
    },
    **{
        f"rotary/{name}-d{head_dim}{'-norms' * norms}": partial(
            _rotary, head_dim, dtype, norms=norms
        )
        for dtype, name in _NAMES.items()
        for head_dim in (64, 128, 256)
        for norms in (False, True)
    },
    **_attention_cases(),
    **{
        f"quantize_kv/{old}-d{head_dim}": partial(_quantize_kv, old, head_dim)
        for old in ("int8", "int4", "int2")
        for head_dim in (64, 128)
    },
    **{
        f"linear_{kind}/{name}-{rows}rows": partial(_linear, kind, dtype, rows)
        for kind in ("int8", "int4", "fp8", "w8a8")
        for dtype, name in _NAMES.items()
        for rows in (8, 64, 2048)
    },
    **{
        f"grouped_linear/{name}-{rows}": partial(_grouped, dtype, rows)
        for dtype, name, rows in ((BF16, "bf16", 16), (BF16, "bf16", 64), (F32, "fp32", 16))
    },
    "router/softmax-128": partial(_router, num_experts=128),
    "router/sigmoid-256-groups": partial(
        _router, num_experts=256, scoring="sigmoid", num_groups=8, top_groups=4, best_two=True
    ),
    "rejection/draft": partial(_verify, with_draft=True),
    "rejection/copied": partial(_verify, with_draft=False),
    **{
        f"compact/{name}-d{head_dim}": partial(_compact, head_dim, dtype)
        for dtype, name in ((BF16, "bf16"), (F32, "fp32"))
        for head_dim in (64, 128)
    },
}
