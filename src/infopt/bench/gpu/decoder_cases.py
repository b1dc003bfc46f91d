"""Cases of the decoder's ops: norm, activation, rotary and page write, attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from infopt.bench.gpu.case import TOLERANCE, KernelCase, Sizes
from infopt.ops import activation, attention, gpu, rms_norm, rotary
from infopt.ops.context import ForwardContext, GroupContext, KVPages
from infopt.ops.gpu import cuda

BLOCK = 16
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def decoder_cases(sizes: Sizes, device: torch.device) -> Iterator[KernelCase]:
    """Yield the cases, each with its tensors made just then."""
    for dtype in (torch.bfloat16, torch.float32):
        yield _norm_case(sizes, device, dtype)
        if device.type == "cuda" and cuda.why_no_nvcc() is None:
            yield _norm_case(sizes, device, dtype, "add_rms_norm_cuda", cuda.add_rms_norm)
        yield _activation_case(sizes, device, dtype)
        yield _rotary_case(sizes, device, dtype)
        yield _decode_case(sizes, device, dtype, sizes.batch, sizes.context)
        yield _prefill_case(sizes, device, dtype)
    yield _decode_case(sizes, device, torch.bfloat16, 1, 2 * sizes.context)
    yield _decode_case(sizes, device, torch.float16, sizes.batch, sizes.context)
    yield _decode_case(
        sizes, device, torch.bfloat16, sizes.batch, sizes.context, window=sizes.context // 4
    )


def _random(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype)


def _norm_case(
    sizes: Sizes,
    device: torch.device,
    dtype: torch.dtype,
    name: str = "add_rms_norm",
    op: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None = None,
) -> KernelCase:
    x, residual = (_random(sizes.tokens, sizes.hidden, dtype=dtype, device=device) for _ in "ab")
    weight = torch.rand(sizes.hidden, device=device)
    function = op or gpu.load_add_rms_norm()
    return KernelCase(
        f"{name}/{_NAMES[dtype]}-{sizes.tokens}x{sizes.hidden}",
        run=lambda: function(x, residual, weight, 1e-5)[0],
        expected=lambda: rms_norm.rms_norm((x + residual).double(), weight, 1e-5),
        tolerance=TOLERANCE[dtype],
        num_bytes=4 * x.nbytes,
        peer=lambda: rms_norm.add_rms_norm(x, residual, weight, 1e-5),
    )


def _activation_case(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> KernelCase:
    gate_up = _random(sizes.tokens, 2 * sizes.intermediate, dtype=dtype, device=device)
    op = gpu.load_gated_activation()
    return KernelCase(
        f"gated_activation/{_NAMES[dtype]}-{sizes.tokens}x{sizes.intermediate}",
        run=lambda: op(gate_up, "silu"),
        expected=lambda: activation.gated_activation(gate_up.double(), "silu"),
        tolerance=TOLERANCE[dtype],
        num_bytes=1.5 * gate_up.nbytes,
        peer=lambda: activation.gated_activation(gate_up, "silu"),
    )


def _rotary_case(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> KernelCase:
    heads = sizes.num_heads + 2 * sizes.num_kv_heads
    qkv = _random(sizes.tokens, heads * sizes.head_dim, dtype=dtype, device=device)
    angles = torch.rand(sizes.tokens, sizes.head_dim // 2, device=device) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    slots = torch.arange(sizes.tokens, device=device) + BLOCK
    query, key = torch.rand(2, sizes.head_dim, device=device)
    norms = rotary.HeadNorms(query, key, 1e-6)
    op = gpu.load_rotary_and_write()
    own_pages = _empty_pages(sizes, sizes.tokens // BLOCK + 2, dtype, device)

    def run(function: Any = op, wide: torch.dtype = dtype) -> torch.Tensor:
        pages = _empty_pages(sizes, sizes.tokens // BLOCK + 2, wide, device)
        parts = (part.to(wide) for part in (qkv, cos, sin))
        queries = function(*parts, pages, slots, norms)
        return torch.cat([queries.flatten(), *(part.flatten() for part in pages[:2])])

    return KernelCase(
        f"rotary_and_write/{_NAMES[dtype]}-{sizes.tokens}",
        run=run,
        expected=lambda: run(rotary.rotary_and_write, torch.float32),
        tolerance=TOLERANCE[dtype],
        num_bytes=2 * qkv.nbytes,
        peer=lambda: rotary.rotary_and_write(qkv, cos, sin, own_pages, slots, norms),
        timed=lambda: op(qkv, cos, sin, own_pages, slots, norms),
    )


def _empty_pages(sizes: Sizes, num_pages: int, dtype: torch.dtype, device: torch.device) -> KVPages:
    shape = (2, num_pages, sizes.num_kv_heads, BLOCK, sizes.head_dim)
    keys, values = torch.zeros(shape, dtype=dtype, device=device)
    return KVPages(keys, values)


def paged_batch(
    sizes: Sizes, device: torch.device, dtype: torch.dtype, lengths: list[int], new: int
) -> tuple[torch.Tensor, KVPages, ForwardContext]:
    """Return queries, pages and context of sequences that each compute ``new`` tokens."""
    width = -(-max(lengths) // BLOCK)
    pages = _empty_pages(sizes, len(lengths) * width + 1, dtype, device)
    for part in (pages.keys, pages.values):
        part.normal_()
    ids = torch.randperm(len(lengths) * width, device=device).add(1).int()
    positions = torch.cat([torch.arange(n - new, n) for n in lengths]).to(device)
    group = GroupContext(ids.view(len(lengths), width), positions)
    starts = [new * i for i in range(len(lengths) + 1)]
    ctx = ForwardContext(
        input_ids=positions,
        positions=positions,
        query_starts=starts,
        context_lens=lengths,
        num_decodes=len(lengths) if new == 1 else 0,
        groups=[group],
        logit_rows=positions[:0],
    )
    q = _random(starts[-1], sizes.num_heads, sizes.head_dim, dtype=dtype, device=device)
    return q, pages, ctx


def _decode_case(
    sizes: Sizes,
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    context: int,
    window: int | None = None,
) -> KernelCase:
    q, pages, ctx = paged_batch(sizes, device, dtype, [context] * batch, 1)
    ctx.groups[0].window = window
    seen = batch * min(context, window or context)
    row = 2 * sizes.num_kv_heads * sizes.head_dim * dtype.itemsize
    name = f"decode_attention/{_NAMES[dtype]}-{batch}x{context}" + (f"-w{window}" if window else "")
    return _attention_case(name, q, pages, ctx, seen * row, 4.0 * seen * q.shape[1] * q.shape[2])


def _prefill_case(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> KernelCase:
    tokens = sizes.tokens if dtype != torch.float32 else max(sizes.tokens // 8, 1)
    q, pages, ctx = paged_batch(sizes, device, dtype, [tokens], tokens)
    pairs = tokens * (tokens + 1) / 2
    flops = 4.0 * pairs * q.shape[1] * q.shape[2]
    name = f"prefill_attention/{_NAMES[dtype]}-{tokens}"
    return _attention_case(name, q, pages, ctx, 2.0 * q.nbytes, flops)


def _attention_case(
    name: str,
    q: torch.Tensor,
    pages: KVPages,
    ctx: ForwardContext,
    num_bytes: float,
    flops: float,
) -> KernelCase:
    op, group, scale = gpu.load_attention(), ctx.groups[0], q.shape[-1] ** -0.5

    def expected() -> torch.Tensor:
        wide = KVPages(pages.keys.float(), pages.values.float())
        return attention.paged_attention(q.float(), wide, ctx, group, scale)

    return KernelCase(
        name,
        run=lambda: op(q, pages, ctx, group, scale),
        expected=expected,
        tolerance=TOLERANCE[q.dtype],
        num_bytes=num_bytes,
        flops=flops,
        peak=q.dtype,
        # With a window the reference waits for the device, so it has no place in a CUDA graph.
        peer=None
        if group.window
        else lambda: attention.paged_attention(q, pages, ctx, group, scale),
    )
