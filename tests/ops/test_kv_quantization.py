"""Quantized pages: codes, their errors, and attention that reads both forms against float64."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from infopt.errors import ConfigError
from infopt.ops import attention, cpu, gpu
from infopt.ops.context import ForwardContext, GroupContext, KVPages, QuantizedTables
from infopt.ops.cpu.build import extension
from infopt.ops.kv_quantization import (
    BITS,
    KVFormat,
    QuantizedPages,
    decode,
    encode,
    pack_keys,
    pack_values,
    quantize_pages,
    unpack_keys,
    unpack_values,
)

INTEGERS = ["int8", "int4", "int2"]
FLOATS = {"fp8_e4m3": (448.0, 2**-4, 2**-10), "fp8_e5m2": (57344.0, 2**-3, 2**-17)}
"""Largest number, largest relative error, half of the smallest step."""


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- the rule


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("residual", [16, 32, 48])
def test_which_pages_a_query_reads_quantized(block_size: int, residual: int) -> None:
    fmt = KVFormat("int8", 16, residual)
    rows = torch.arange(200)
    bounds = fmt.readable_rows(rows, block_size)
    for row in rows.tolist():
        limit = row // block_size * block_size - residual
        pages = [p for p in range(200) if (p + 1) * block_size - 1 <= limit]
        assert fmt.num_readable_pages(row, block_size) == len(pages)
        assert bounds[row] == len(pages) * block_size
        assert row < residual or row - bounds[row] < residual + block_size  # little more is kept


@pytest.mark.parametrize(
    ("fmt", "block", "draft", "words"),
    [
        (KVFormat("int8", 24, 128), 8, 0, "kv_group_size=24"),
        (KVFormat("int8", 64, 128), 48, 0, "block_size=48"),
        (KVFormat("int8", 64, 120), 16, 0, "kv_residual=120"),
        (KVFormat("int8", 64, 64), 16, 0, "at least 80"),
        (KVFormat("int8", 64, 128), 16, 64, "64 drafted tokens"),
    ],
)
def test_what_does_not_go_together_is_refused(
    fmt: KVFormat, block: int, draft: int, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        fmt.check(block, draft)


def test_head_sizes_that_are_not_words_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"head_dim is\s+40"):
        KVFormat("int4").check_head_dim(40)


# ---------------------------------------------------------------- codes


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize(("group", "dim"), [(16, 16), (64, 48), (128, 64), (32, 80)])
def test_unpacking_is_the_inverse_of_packing(dtype: str, group: int, dim: int) -> None:
    fmt = KVFormat(dtype, group)
    codes = torch.randint(0, 1 << fmt.bits, (3, 2, group, dim), dtype=torch.uint8)
    for pack, unpack in ((pack_keys, unpack_keys), (pack_values, unpack_values)):
        data = pack(codes, fmt)
        assert data.shape == (3, 2, group * dim * fmt.bits // 8)
        assert torch.equal(unpack(data, fmt, dim), codes)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_codes_are_within_half_a_step(dtype: str) -> None:
    """Half a step, and what rounding scale and minimum to float16 shifts the ends by."""
    fmt = KVFormat(dtype, 64)
    keys, values = 3 * rand(5, 64, 32) + 1, rand(5, 64, 32, seed=1)
    got = decode(encode(keys, values, fmt), fmt, 32)
    for x, back, dim in ((keys, got.keys, -2), (values, got.values, -1)):
        low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
        step = (high - low) / ((1 << fmt.bits) - 1)
        shift = (low.abs() + (high - low)) * 2**-11
        assert ((back - x).abs() <= step * (0.5 + 2**-11) + shift + 1e-6).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_codes_round_to_nearest_and_saturate(dtype: str) -> None:
    fmt, (largest, relative, absolute) = KVFormat(dtype, 16), FLOATS[dtype]
    x = rand(16, 16) * torch.logspace(-4, 2, 16)
    got = decode(encode(x, x, fmt), fmt, 16).keys
    assert ((got - x).abs() <= torch.maximum(x.abs() * relative, torch.tensor(absolute))).all()
    x[0, 0], x[1, 1], x[2, 2] = 1e30, float("-inf"), float("nan")
    got = decode(encode(x, x, fmt), fmt, 16)
    for part in got:
        assert part[0, 0] == largest and part[1, 1] == -largest and part[2, 2].isnan()
        assert part.isnan().sum() == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_what_is_not_finite_poisons_its_channel_or_row_alone(dtype: str, value: float) -> None:
    fmt, x = KVFormat(dtype, 16), rand(16, 32)
    x[3, 5] = value
    got = decode(encode(x, x, fmt), fmt, 32)
    assert torch.equal(got.keys.isnan().any(0).nonzero().flatten(), torch.tensor([5]))
    assert got.keys[:, 5].isnan().all()
    assert torch.equal(got.values.isnan().any(1).nonzero().flatten(), torch.tensor([3]))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_constant_channel_comes_back_as_it_is_stored(dtype: str) -> None:
    """Pins: one head with a constant key channel of 50 broke a whole model family."""
    fmt, x = KVFormat(dtype, 64), rand(64, 32)
    x[:, 7] = 50.0
    got = decode(encode(x, x, fmt), fmt, 32).keys
    assert (got[:, 7] == 50.0).all()
    others = [d for d in range(32) if d != 7]
    step = (x.amax(0) - x.amin(0)) / ((1 << fmt.bits) - 1)
    assert ((got - x).abs()[:, others] <= 0.51 * step[others] + 0.01).all()
    per_token = decode(encode(x, x, fmt), fmt, 32).values  # the same numbers, coded per row
    error, other = ((part - x)[:, others].norm() for part in (got, per_token))
    assert error < 0.3 * other


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("block", "group", "dim"), [(16, 64, 64), (4, 16, 16), (8, 128, 80)])
def test_the_kernel_writes_the_bytes_of_the_reference(
    dtype: str, compute: torch.dtype, block: int, group: int, dim: int
) -> None:
    fmt = KVFormat(dtype, group)
    pool = (4 * rand(20 + group // block, 2, 3, block, dim)).to(compute)
    pool[:, 0, 1, :, 5] = 2.5  # a constant channel
    jobs = torch.tensor([[p, *torch.randperm(20)[: group // block].tolist()] for p in (1, 3)])
    if group // block > 20:
        jobs = torch.randint(0, 20, (2, 1 + group // block))
        jobs[:, 0] = torch.tensor([1, 3])
    written = []
    for op in (quantize_pages, cpu.load_quantize_pages()):
        data = torch.zeros(5, 3, fmt.head_bytes(dim), dtype=torch.uint8)
        op(KVPages(pool[:, 0], pool[:, 1], QuantizedPages(data, fmt, dim)), jobs)
        written.append(data)
    assert torch.equal(*written)
    assert written[0][[0, 2, 4]].sum() == 0 and written[0][1].sum() > 0


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
@pytest.mark.parametrize("dtype", ["int8", "int4", "int2"])
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("block", "group", "dim"), [(16, 64, 64), (4, 16, 16), (8, 128, 80)])
def test_triton_writes_the_bytes_of_the_reference(
    dtype: str, compute: torch.dtype, block: int, group: int, dim: int
) -> None:
    fmt = KVFormat(dtype, group)
    pool = (4 * rand(20 + group // block, 2, 3, block, dim)).to(compute)
    pool[:, 0, 1, :, 5] = 2.5  # a constant channel
    jobs = torch.randint(0, 20, (2, 1 + group // block))
    jobs[:, 0] = torch.tensor([1, 3])
    written = []
    for op in (quantize_pages, gpu.load_quantize_pages()):
        data = torch.zeros(5, 3, fmt.head_bytes(dim), dtype=torch.uint8)
        op(KVPages(pool[:, 0], pool[:, 1], QuantizedPages(data, fmt, dim)), jobs)
        op(KVPages(pool[:, 0], pool[:, 1], QuantizedPages(data, fmt, dim)), jobs[:0])
        written.append(data)
    assert torch.equal(*written)


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
def test_triton_poisons_what_is_not_finite() -> None:
    fmt = KVFormat("int8", 16)
    pool = rand(4, 2, 1, 16, 16)
    pool[1, 0, 0, 3, 2] = float("nan")
    pool[1, 1, 0, 5, 7] = float("inf")
    data = torch.zeros(2, 1, fmt.head_bytes(16), dtype=torch.uint8)
    pages = KVPages(pool[:, 0], pool[:, 1], QuantizedPages(data, fmt, 16))
    gpu.load_quantize_pages()(pages, torch.tensor([[1, 1]]))
    keys, values = decode(data[1, 0], fmt, 16)
    assert keys.isnan().nonzero()[:, 1].unique().tolist() == [2]
    assert values.isnan().nonzero()[:, 0].unique().tolist() == [5]


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
@pytest.mark.parametrize(
    ("change", "field"),
    [({"bits": 3}, "bits"), ({"group_size": 48}, "group_size"), ({"jobs": (1, 4)}, "jobs")],
)
def test_triton_refuses_wrong_jobs(change: dict[str, Any], field: str) -> None:
    from infopt.kernels.triton_ops.common import KernelArgumentError
    from infopt.kernels.triton_ops.quantize_kv import quantize_kv

    pool = torch.zeros(4, 2, 1, 16, 16)
    given = {"bits": 8, "group_size": 16, "jobs": (1, 2), **change}
    data = torch.zeros(2, 1, KVFormat("int8", 16).head_bytes(16), dtype=torch.uint8)
    jobs = torch.ones(given["jobs"], dtype=torch.int64)
    with pytest.raises(KernelArgumentError, match=field):
        quantize_kv(pool[:, 0], pool[:, 1], jobs, data, given["bits"], given["group_size"])


# ---------------------------------------------------------------- attention


@dataclass
class Mixed:
    """A batch whose old rows are quantized, and what each query should read."""

    q: torch.Tensor
    pages: KVPages
    ctx: ForwardContext
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    fmt: KVFormat

    @property
    def group(self) -> GroupContext:
        return self.ctx.groups[0]

    def expected(self, scale: float, softcap: float | None) -> torch.Tensor:
        """Dense attention in float64 over the form that the rule says."""
        rows = []
        for i, (start, end) in enumerate(
            zip(self.ctx.query_starts, self.ctx.query_starts[1:], strict=False)
        ):
            for t in range(start, end):
                rows.append(self._row(i, t, scale, softcap))
        return torch.stack(rows)

    def _row(self, i: int, t: int, scale: float, softcap: float | None) -> torch.Tensor:
        row = int(self.ctx.positions[t])
        block, window = self.pages.block_size, self.group.window
        bound = self.fmt.num_readable_pages(row, block) * block
        first = 0 if window is None else max(row - window + 1, 0)
        old = self._decoded(i)
        parts = []
        for full, coded in ((self.keys[i], old[0]), (self.values[i], old[1])):
            parts.append(torch.cat((coded[:bound], full[bound:].double()))[first : row + 1])
        share = self.q.shape[1] // parts[0].shape[1]
        k, v = (part.repeat_interleave(share, 1) for part in parts)
        scores = torch.einsum("hd,jhd->hj", self.q[t].double(), k) * scale
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        return torch.einsum("hj,jhd->hd", scores.softmax(-1), v).flatten()

    def _decoded(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        table = self.group.quantized.block_tables[i].long()
        got = decode(self.pages.quantized.data[table], self.fmt, self.q.shape[2])
        length = len(self.keys[i])
        keys, values = (part.transpose(1, 2).flatten(0, 1)[:length].double() for part in got)
        return keys, values


def make_mixed(
    fmt: KVFormat,
    lengths: list[tuple[int, int]],
    *,
    block: int = 16,
    dtype: torch.dtype = torch.float32,
    heads: tuple[int, int] = (6, 2),
    dim: int = 32,
    window: int | None = None,
    seed: int = 0,
    key_scale: float = 1.0,
) -> Mixed:
    """Sequences of ``(cached, new)`` tokens; full pages that nobody reads in full hold NaN."""
    num_heads, num_kv = heads
    per_group = fmt.group_size // block
    pool = torch.full((400, 2, num_kv, block, dim), float("nan"), dtype=dtype)
    data = torch.zeros(120, num_kv, fmt.head_bytes(dim), dtype=torch.uint8)
    data[0] = 255  # the null page: NaN scales
    pages = KVPages(pool[:, 0], pool[:, 1], QuantizedPages(data, fmt, dim))
    next_page, next_old = 1, 1
    keys, values, tables, old_tables, q, positions, starts = [], [], [], [], [], [], [0]
    for i, (cached, new) in enumerate(lengths):
        length = cached + new
        num_pages = -(-length // block)
        k, v = (rand(length, num_kv, dim, seed=seed + 10 * i + j).to(dtype) for j in (1, 2))
        k *= key_scale
        table = list(range(next_page, next_page + num_pages))
        next_page += num_pages
        for row in range(length):
            pool[table[row // block], 0, :, row % block] = k[row]
            pool[table[row // block], 1, :, row % block] = v[row]
        rows = fmt.num_readable_pages(length, block) * block
        count = -(-rows // fmt.group_size)
        old = list(range(next_old, next_old + count))
        next_old += count
        jobs = [[page, *table[j * per_group : (j + 1) * per_group]] for j, page in enumerate(old)]
        if jobs:
            quantize_pages(pages, torch.tensor(jobs))
        gone = fmt.num_readable_pages(cached, block)  # the first query reads no less quantized
        for page in table[:gone]:
            pool[page] = float("nan")
        table[:gone] = [0] * gone
        keys.append(k)
        values.append(v)
        tables.append(table)
        old_tables.append(old)
        q.append(rand(new, num_heads, dim, seed=seed + 10 * i + 3).to(dtype))
        positions.extend(range(cached, length))
        starts.append(starts[-1] + new)
    old = QuantizedTables(padded(old_tables), torch.zeros(0, 1 + per_group, dtype=torch.int64))
    slots = torch.zeros(len(positions), dtype=torch.int64)
    ctx = ForwardContext(
        input_ids=torch.zeros(len(positions), dtype=torch.int64),
        positions=torch.tensor(positions),
        query_starts=starts,
        context_lens=[sum(pair) for pair in lengths],
        num_decodes=sum(new == 1 for _, new in lengths),
        groups=[GroupContext(padded(tables), slots, window, quantized=old)],
        logit_rows=torch.zeros(0, dtype=torch.int64),
    )
    return Mixed(torch.cat(q), pages, ctx, keys, values, fmt)


def padded(tables: list[list[int]]) -> torch.Tensor:
    width = max(1, *map(len, tables))
    return torch.tensor([[*t, *[0] * (width - len(t))] for t in tables], dtype=torch.int32)


def finite(batch: Mixed) -> Mixed:
    """The reference multiplies masked rows by zero."""
    for part in batch.pages[:2]:
        part.nan_to_num_(nan=0.0)
    batch.pages.quantized.data[0] = 0
    return batch


def run(op: Callable[..., torch.Tensor], batch: Mixed, softcap: float | None) -> torch.Tensor:
    scale = batch.q.shape[2] ** -0.5
    return op(batch.q, batch.pages, batch.ctx, batch.group, scale, softcap)


LENGTHS = [(0, 1), (47, 1), (48, 1), (200, 1), (263, 1), (0, 130), (100, 37), (190, 70)]
CASES: dict[str, dict[str, Any]] = {
    "pages-of-16": {},
    "pages-of-4": {"block": 4},
    "pages-of-1": {"block": 1, "lengths": [(100, 1), (33, 20)]},
    "one-head": {"heads": (1, 1)},
    "five-heads-share": {"heads": (5, 1), "dim": 80},
    "large-heads": {"heads": (4, 4), "dim": 128},
    "window": {"window": 70},
    "softcap": {"softcap": 3.0},
    "group-32": {"fmt": {"group_size": 32, "residual": 48}},
    "group-128": {"fmt": {"group_size": 128, "residual": 144}, "lengths": [(500, 1), (300, 80)]},
}


def case_of(name: str, dtype: str, compute: torch.dtype) -> tuple[Mixed, float | None]:
    options = dict(CASES[name])
    fmt = KVFormat(dtype, **{"group_size": 16, "residual": 32, **options.pop("fmt", {})})
    softcap, lengths = options.pop("softcap", None), options.pop("lengths", LENGTHS)
    return make_mixed(fmt, lengths, dtype=compute, **options), softcap


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_float32_attention_equals_dense_attention(dtype: str, case: str, backend: str) -> None:
    """Bound: 3e-5 of the largest output."""
    batch, softcap = case_of(case, dtype, torch.float32)
    expected = batch.expected(batch.q.shape[2] ** -0.5, softcap)
    if backend == "reference":
        got = run(attention.paged_attention, finite(batch), softcap)
    else:
        got = run(cpu.load_attention(), batch, softcap)
    assert (got.double() - expected).abs().max() <= 3e-5 * expected.abs().max()


@pytest.mark.parametrize("largest", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_keys_of_any_size_give_numbers_without_scales(
    dtype: str, largest: float, backend: str
) -> None:
    """Pins: float8 pages without calibrated scales crashed on one path, and spoiled outputs on
    another. Within the range of a format outputs are off by its precision, beyond it keys saturate.
    """
    fmt = KVFormat(dtype, 16, 32)
    biggest = float(make_mixed(fmt, [(200, 1)]).keys[0].abs().max())
    batch = make_mixed(fmt, [(200, 1)], key_scale=largest / biggest)
    batch.q.mul_(biggest / largest)  # scores, and so what errors do to them, are the same
    assert float(batch.keys[0].abs().max()) == pytest.approx(largest)
    exact = replace(batch, fmt=KVFormat(dtype, 16, 4096)).expected(batch.q.shape[2] ** -0.5, None)
    op = attention.paged_attention if backend == "reference" else cpu.load_attention()
    got = run(op, finite(batch) if backend == "reference" else batch, None)
    assert got.isfinite().all()
    error = float((got.double() - exact).norm() / exact.norm())
    is_within = largest <= FLOATS[dtype][0]
    assert error < 1.5 * FLOATS[dtype][1] if is_within else error > FLOATS[dtype][1]


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("case", CASES)
def test_bfloat16_attention_is_as_close_as_its_output_rounds(dtype: str, case: str) -> None:
    """Bound: rounding of the output (2^-9) and 15-bit factors of codes."""
    batch, softcap = case_of(case, dtype, torch.bfloat16)
    expected = batch.expected(batch.q.shape[2] ** -0.5, softcap)
    got = run(cpu.load_attention(), batch, softcap)
    assert (got.double() - expected).abs().max() <= 4e-3 * expected.abs().max()


TRITON_LENGTHS = [(47, 1), (200, 1), (0, 60), (100, 9)]
TRITON_CASES = [
    *((dtype, "pages-of-16", torch.float32) for dtype in BITS),
    *((dtype, "pages-of-16", torch.bfloat16) for dtype in ("int8", "fp8_e4m3")),
    ("int8", "five-heads-share", torch.float32),
    ("int4", "pages-of-4", torch.float32),
    ("int4", "window", torch.float32),
    ("int2", "softcap", torch.float32),
    ("int8", "group-32", torch.float32),
]


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
@pytest.mark.parametrize(("dtype", "case", "compute"), TRITON_CASES)
def test_triton_attention_equals_dense_attention(
    monkeypatch: pytest.MonkeyPatch, dtype: str, case: str, compute: torch.dtype
) -> None:
    """Runs in the interpreter here. Bound: 3e-5 of the largest output, or what bfloat16 rounds."""
    monkeypatch.setitem(CASES, case, {"lengths": TRITON_LENGTHS, **CASES[case]})
    batch, softcap = case_of(case, dtype, compute)
    expected = batch.expected(batch.q.shape[2] ** -0.5, softcap)
    got = run(gpu.load_attention(), batch, softcap)
    bound = 3e-5 if compute == torch.float32 else 1e-2
    assert (got.double() - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
def test_triton_refuses_pages_of_another_format() -> None:
    from infopt.kernels.triton_ops.common import KernelArgumentError

    batch, _ = case_of("pages-of-16", "int8", torch.float32)
    wrong = batch.pages.quantized._replace(format=KVFormat("int4", 16, 32))
    with pytest.raises(KernelArgumentError, match="data"):
        run(gpu.load_attention(), replace(batch, pages=batch.pages._replace(quantized=wrong)), None)


@pytest.mark.parametrize("dtype", ["int8", "int2", "fp8_e4m3"])
def test_rows_have_the_same_bits_alone(dtype: str) -> None:
    batch, _ = case_of("pages-of-4", dtype, torch.float32)
    together = run(cpu.load_attention(), batch, None)
    for i, (start, end) in enumerate(
        zip(batch.ctx.query_starts, batch.ctx.query_starts[1:], strict=False)
    ):
        for t in (start, end - 1):
            old = replace(
                batch.group.quantized,
                block_tables=batch.group.quantized.block_tables[i : i + 1].contiguous(),
            )
            group = replace(
                batch.group,
                block_tables=batch.group.block_tables[i : i + 1].contiguous(),
                quantized=old,
            )
            ctx = replace(
                batch.ctx,
                positions=batch.ctx.positions[t : t + 1],
                query_starts=[0, 1],
                context_lens=[int(batch.ctx.positions[t]) + 1],
                num_decodes=1,
            )
            q = batch.q[t : t + 1].contiguous()
            alone = cpu.load_attention()(q, batch.pages, ctx, group, q.shape[2] ** -0.5)
            assert torch.equal(alone[0], together[t])


def test_rows_replace_positions() -> None:
    """Where rows were taken out, a query sees the rows up to its own, wherever its position is."""
    batch, _ = case_of("pages-of-16", "int8", torch.float32)
    expected = run(cpu.load_attention(), batch, None)
    group = replace(batch.group, rows=batch.ctx.positions, row_lens=list(batch.ctx.context_lens))
    moved = replace(
        batch.ctx, positions=batch.ctx.positions + 1000, context_lens=[9999] * len(LENGTHS)
    )
    scale = batch.q.shape[2] ** -0.5
    got = cpu.load_attention()(batch.q, batch.pages, moved, group, scale)
    assert torch.equal(got, expected)
    finite(batch)
    plain = attention.paged_attention(batch.q, batch.pages, batch.ctx, batch.group, scale)
    moved = attention.paged_attention(batch.q, batch.pages, moved, group, scale)
    assert torch.equal(plain, moved)


# ---------------------------------------------------------------- wrong arguments


def change(batch: Mixed, **changes: Any) -> list[Any]:
    """Arguments of the kernel, some of them replaced."""
    pages = batch.pages.quantized
    group = batch.group
    arguments: dict[str, Any] = {
        "q": batch.q,
        "keys": batch.pages.keys,
        "values": batch.pages.values,
        "rows": batch.ctx.positions,
        "tables": group.block_tables,
        "starts": batch.ctx.query_starts[batch.ctx.num_decodes :],
        "num_decodes": batch.ctx.num_decodes,
        "window": 0,
        "scale": 0.1,
        "softcap": 0.0,
        "quantized": (pages.data, 0, pages.format.group_size, pages.format.residual),
        "old": group.quantized.block_tables,
    }
    return list((arguments | changes).values())


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"quantized": None}, ValueError, "come together"),
        ({"quantized": "kind"}, ValueError, "no kind of code 9"),
        ({"quantized": "group"}, ValueError, "16, 32, 64 or 128 rows"),
        ({"quantized": "residual"}, ValueError, "must be multiples"),
        ({"quantized": "bytes"}, ValueError, "quantized"),
        ({"old": torch.full((8, 20), 5000, dtype=torch.int32)}, IndexError, "page 5000"),
        ({"old": torch.zeros((2, 20), dtype=torch.int32)}, ValueError, "rows for"),
        ({"old": torch.zeros((8, 20), dtype=torch.int64)}, TypeError, "quantized tables"),
    ],
)
def test_wrong_attention_arguments_are_refused(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    batch, _ = case_of("pages-of-16", "int8", torch.float32)
    data = batch.pages.quantized.data
    bad = {
        "kind": (data, 9, 16, 32),
        "group": (data, 0, 24, 32),
        "residual": (data, 0, 16, 40),
        "bytes": (data[..., :-1], 0, 16, 32),
    }
    if isinstance(changes.get("quantized"), str):
        changes = {"quantized": bad[changes["quantized"]]}
    with pytest.raises(error, match=words):
        extension().attention(*change(batch, **changes))


@pytest.mark.parametrize(
    ("jobs", "error", "words"),
    [
        (torch.tensor([[120, 1]]), IndexError, "page 120"),
        (torch.tensor([[1, 400]]), IndexError, "page 400"),
        (torch.tensor([[-1, 1]]), IndexError, "page -1"),
        (torch.tensor([[1, 1, 1]]), ValueError, "jobs"),
        (torch.tensor([[1, 1]], dtype=torch.int32), TypeError, "jobs"),
    ],
)
def test_wrong_jobs_are_refused(jobs: torch.Tensor, error: type[Exception], words: str) -> None:
    batch, _ = case_of("pages-of-16", "int8", torch.float32)
    with pytest.raises(error, match=words):
        cpu.load_quantize_pages()(batch.pages, jobs)
