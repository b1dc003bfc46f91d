"""Cases of the kernels around weights, experts, drafts and compaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from infopt.bench.gpu.case import TOLERANCE, KernelCase, Sizes
from infopt.kernels.triton_ops import (
    compact,
    grouped_linear,
    linear_fp8,
    linear_int4,
    linear_int8,
    linear_w8a8,
    references,
    rejection,
    router,
)

BF16, F32 = torch.bfloat16, torch.float32
GROUP = 64


def weight_cases(sizes: Sizes, device: torch.device) -> Iterator[KernelCase]:
    """Yield the cases, each with its tensors made just then."""
    for rows in sorted({1, min(16, sizes.tokens), sizes.tokens}):
        for kind in ("int8", "int4", "fp8", "w8a8"):
            yield linear_case(kind, sizes, rows, device, BF16)
    yield linear_case("int8", sizes, 1, device, F32)
    yield _router_case(sizes, device)
    for tokens in (min(16, sizes.tokens), sizes.tokens):
        yield _grouped_case(sizes, tokens, device)
    yield _rejection_case(sizes, device)
    yield _compact_case(sizes, device)


def linear_case(
    kind: str, sizes: Sizes, rows: int, device: torch.device, dtype: torch.dtype
) -> KernelCase:
    """Return the product of some rows with the up-projection in one format."""
    outputs, inputs = shape = sizes.intermediate, sizes.hidden
    x = torch.randn(rows, inputs, device=device).to(dtype)
    run, expected, weight_bytes = _FORMATS[kind](x, shape)
    dense = torch.randn(shape, device=device).to(dtype)
    return KernelCase(
        f"linear_{kind}/{'bf16' if dtype == BF16 else 'fp32'}-{rows}x{inputs}x{outputs}",
        run=run,
        expected=expected,
        tolerance=TOLERANCE[dtype],
        num_bytes=weight_bytes + x.nbytes + rows * outputs * dtype.itemsize,
        flops=2.0 * rows * inputs * outputs,
        peak=dtype,
        peer=lambda: F.linear(x, dense),
    )


Product = Callable[[], torch.Tensor]


def _int4(x: torch.Tensor, shape: tuple[int, int]) -> tuple[Product, Product, int]:
    codes = torch.randint(0, 16, shape, dtype=torch.uint8, device=x.device)
    groups = -(-shape[1] // GROUP)
    scale, offset = torch.rand(2, groups, shape[0], device=x.device).half() / 100
    packed = linear_int4.pack_int4(codes, GROUP)
    return (
        lambda: linear_int4.int4_linear(x, packed, scale, offset),
        lambda: references.int4_linear(x, codes, scale, offset, None, GROUP),
        packed.nbytes + scale.nbytes + offset.nbytes,
    )


def _fp8(x: torch.Tensor, shape: tuple[int, int]) -> tuple[Product, Product, int]:
    weight = torch.randn(shape, device=x.device).to(torch.float8_e4m3fn)
    scale = torch.rand(shape[0], device=x.device) / 100
    return (
        lambda: linear_fp8.fp8_linear(x, weight, scale),
        lambda: references.int8_linear(x, weight, scale, None),
        weight.nbytes,
    )


def _int8(x: torch.Tensor, shape: tuple[int, int]) -> tuple[Product, Product, int]:
    weight = torch.randint(-127, 128, shape, dtype=torch.int8, device=x.device)
    scale = torch.rand(shape[0], device=x.device) / 100
    return (
        lambda: linear_int8.int8_linear(x, weight, scale),
        lambda: references.int8_linear(x, weight, scale, None),
        weight.nbytes,
    )


def _w8a8(x: torch.Tensor, shape: tuple[int, int]) -> tuple[Product, Product, int]:
    weight = torch.randint(-127, 128, shape, dtype=torch.int8, device=x.device)
    scale = torch.rand(shape[0], device=x.device) / 100
    return (
        lambda: linear_w8a8.w8a8_linear(x, weight, scale),
        lambda: references.w8a8_linear(x, weight, scale, None),
        weight.nbytes,
    )


_FORMATS = {"int8": _int8, "int4": _int4, "fp8": _fp8, "w8a8": _w8a8}


def _router_case(sizes: Sizes, device: torch.device) -> KernelCase:
    logits = torch.randn(sizes.tokens, sizes.experts, device=device)
    k = min(8, sizes.experts)

    def spread(ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Lay the weights out by expert, so that ids and weights are compared at once."""
        return torch.zeros_like(logits).scatter(1, ids.long(), weights.float())

    return KernelCase(
        f"router/{sizes.tokens}x{sizes.experts}",
        run=lambda: spread(*router.route(logits, k)),
        expected=lambda: spread(*references.route(logits, k)),
        tolerance=1e-5,
        num_bytes=logits.nbytes,
        peer=lambda: logits.softmax(-1).topk(k),
        timed=lambda: router.route(logits, k),
    )


def _grouped_case(sizes: Sizes, tokens: int, device: torch.device) -> KernelCase:
    k, outputs, inputs = 2, sizes.hidden // 4, sizes.hidden // 2
    ids = torch.rand(tokens, sizes.experts, device=device).argsort(-1)[:, :k].int()
    x = torch.randn(tokens, inputs, device=device).to(BF16)
    weight = torch.randn(sizes.experts, outputs, inputs, device=device).to(BF16)
    rows = grouped_linear.block_rows(BF16, tokens * k, sizes.experts)
    blocks = grouped_linear.plan_experts(ids, sizes.experts, rows)
    touched = len(ids.unique())
    return KernelCase(
        f"grouped_linear/bf16-{tokens}x{k}of{sizes.experts}",
        run=lambda: grouped_linear.grouped_linear(x, weight, blocks),
        expected=lambda: references.grouped_linear(x, weight, ids),
        tolerance=TOLERANCE[BF16],
        num_bytes=touched * outputs * inputs * 2.0 + x.nbytes + tokens * k * outputs * 2.0,
        flops=2.0 * tokens * k * outputs * inputs,
    )


def _rejection_case(sizes: Sizes, device: torch.device) -> KernelCase:
    batch, k = sizes.batch, 4
    target = torch.randn(batch, k + 1, sizes.vocab, device=device).mul_(2).softmax(-1)
    draft = (target[:, :k] * torch.rand_like(target[:, :k])).clamp_min(1e-12)
    draft = draft / draft.sum(-1, keepdim=True)
    drafted = torch.multinomial(draft.flatten(0, 1), 1).view(batch, k)
    counts = torch.full((batch,), k, dtype=torch.int32, device=device)
    uniforms = torch.rand(batch, k + 1, device=device)
    args = (drafted, counts, target.contiguous(), draft.contiguous(), uniforms)
    return KernelCase(
        f"rejection/{batch}x{k}x{sizes.vocab}",
        run=lambda: rejection.verify_drafts(*args)[0] + 1,  # counts from 1: an error has a scale
        expected=lambda: references.verify_drafts(*args)[0].to(device) + 1,
        tolerance=0.0,
        num_bytes=4.0 * batch * 2 * sizes.vocab * 2,
    )


def _compact_case(sizes: Sizes, device: torch.device) -> KernelCase:
    block, kept = 16, sizes.context // 2
    shape = (2, sizes.context // block + 1, sizes.num_kv_heads, block, sizes.head_dim)
    pool = torch.randn(shape, device=device).to(BF16)
    order = torch.rand(sizes.num_kv_heads, sizes.context, device=device).argsort(-1)
    source = order[:, :kept].sort(dim=-1).values.contiguous()
    target = torch.arange(kept, device=device)

    def run(move: Any = compact.compact) -> torch.Tensor:
        pages = pool.clone()
        move(pages[0], pages[1], source, target)
        return pages

    return KernelCase(
        f"compact/bf16-{kept}of{sizes.context}",
        run=run,
        expected=lambda: run(references.compact),
        tolerance=0.0,
        num_bytes=8.0 * kept * sizes.num_kv_heads * sizes.head_dim * 2,
        peer=lambda: references.compact(pool[0], pool[1], source, target),
        timed=lambda: compact.compact(pool[0], pool[1], source, target),
    )
