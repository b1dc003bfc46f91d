"""The layers in one C++ call: the same bits as the single ops, and arguments checked beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

from infopt.ops import ForwardContext, GroupContext, KVPages, resolve_ops
from infopt.ops.cpu.fp8 import Fp8Linear
from infopt.ops.cpu.layer_stack import CppStack, load_layer_stack
from infopt.ops.cpu.linear import PackedLinear
from infopt.ops.cpu.quantized import CodeLinear, DynamicInt8Linear
from infopt.ops.experts import ExpertSpec
from infopt.ops.layer_stack import LayerWeights, OpByOpStack, StackSpec
from infopt.ops.linear import DenseLinear
from infopt.ops.mlp import DenseMlp, SparseMlp
from infopt.ops.rotary import HeadNorms
from infopt.ops.router import Routing

HIDDEN, HEADS, KV_HEADS, DIM, MLP, EXPERTS = 48, 6, 2, 16, 80, 6
BLOCK = 16
SEQUENCES = [(1, 1), (40, 1), (17, 1), (23, 7), (5, 5), (64, 33)]


@dataclass
class Case:
    """Two layers of two groups over random pages, and a batch."""

    spec: StackSpec
    pages: list[tuple[int, KVPages]]
    ctx: ForwardContext
    x: torch.Tensor
    rotations: dict[str, tuple[torch.Tensor, torch.Tensor]]

    def op_by_op(self) -> OpByOpStack:
        ops = resolve_ops("auto", torch.device("cpu"), self.spec.dtype)
        return OpByOpStack(self.spec, self.pages, ops, "reference")

    def run(self, make: Callable[[Case], Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return hidden states and all pages, which are put back afterwards."""
        saved = (
            [kv.keys.clone() for _, kv in self.pages],
            [kv.values.clone() for _, kv in self.pages],
        )
        hidden = make(self)(self.x, self.ctx, self.rotations)
        written = torch.stack([torch.stack([kv.keys, kv.values]) for _, kv in self.pages])
        for (_, kv), keys, values in zip(self.pages, *saved, strict=True):
            kv.keys.copy_(keys)
            kv.values.copy_(values)
        return hidden, written


def dense(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
    return PackedLinear(weight, bias)


def coded(weight: torch.Tensor, bias: torch.Tensor | None) -> CodeLinear:
    codes = (weight.float() * 40 + 8).round().clamp(0, 15).to(torch.uint8)
    groups = -(-weight.shape[1] // 32)
    scale = torch.full((weight.shape[0], groups), 1 / 40)
    return CodeLinear(codes, scale, scale * -8, bias, code_bits=4, group_size=32)


def narrow(weight: torch.Tensor, bias: torch.Tensor | None) -> CodeLinear:
    codes = (weight.float() * 20 + 4).round().clamp(0, 7).to(torch.uint8)
    groups = -(-weight.shape[1] // 32)
    scale = torch.full((weight.shape[0], groups), 1 / 20)
    return CodeLinear(codes, scale, scale * -4, bias, code_bits=3, group_size=32)


def static(weight: torch.Tensor, bias: torch.Tensor | None) -> DynamicInt8Linear:
    codes = (weight.float() * 200).round().clamp(-127, 127).to(torch.int8)
    scale = torch.full((weight.shape[0],), 1 / 200)
    return DynamicInt8Linear(codes, scale, bias, activation_scale=0.03)


def float8(weight: torch.Tensor, bias: torch.Tensor | None, **how: int) -> Fp8Linear:
    codes = (weight.float() * 64).to(torch.float8_e4m3fn)
    return Fp8Linear(codes, torch.full((weight.shape[0],), 1 / 64), bias, **how)


float8_rounded = partial(float8, activation_bits=8)


@pytest.fixture
def make_case(cpu_isa: str) -> Callable[..., Case]:
    del cpu_isa

    def make(
        dtype: torch.dtype = torch.float32,
        *,
        linear: Callable[..., Any] = dense,
        has_bias: bool = False,
        head_norms: bool = False,
        sandwich: bool = False,
        experts: dict[str, Any] | None = None,
        sequences: list[tuple[int, int]] = SEQUENCES,
    ) -> Case:
        random = torch.Generator().manual_seed(1)

        def rand(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return torch.randn(*shape, generator=random) * scale

        def product(out_features: int, in_features: int) -> Any:
            bias = rand(out_features).to(dtype) if has_bias else None
            return linear(rand(out_features, in_features, scale=0.15).to(dtype), bias)

        def gated(inner: int) -> DenseMlp:
            return DenseMlp(product(2 * inner, HIDDEN), product(HIDDEN, inner))

        def mixture(routing: Routing, shared: bool = False, gate: bool = False) -> SparseMlp:
            ops = resolve_ops("auto", torch.device("cpu"), dtype)
            each = [gated(32) for _ in range(EXPERTS)]
            parts = [mlp.gate_up for mlp in each], [mlp.down for mlp in each]
            spec = ExpertSpec(*parts, "silu", dtype)
            return SparseMlp(
                router=dense(rand(EXPERTS + gate, HIDDEN, scale=0.3).to(dtype), None),
                routing=routing,
                bias=rand(EXPERTS, scale=0.1),
                spec=spec,
                experts=ops.experts(spec, ops),
                shared=gated(64) if shared else None,
                is_gated=gate,
            )

        def layer(kind: str) -> LayerWeights:
            is_sparse = experts is not None and kind == "window"
            return LayerWeights(
                kind=kind,
                input_norm=1 + rand(HIDDEN, scale=0.2),
                qkv=product((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
                output=product(HIDDEN, HEADS * DIM),
                post_attention_norm=1 + rand(HIDDEN, scale=0.2),
                mlp=mixture(**experts) if is_sparse else gated(MLP),
                head_norms=HeadNorms(1 + rand(DIM), 1 + rand(DIM), 1e-6) if head_norms else None,
                pre_mlp_norm=1 + rand(HIDDEN, scale=0.2) if sandwich else None,
                post_mlp_norm=1 + rand(HIDDEN, scale=0.2) if sandwich else None,
            )

        spec = StackSpec(
            layers=[layer("full"), layer("window")],
            final_norm=1 + rand(HIDDEN, scale=0.2),
            eps=1e-5,
            attention_scale=DIM**-0.5,
            attention_softcap=None,
            activation="silu",
            dtype=dtype,
        )
        num_pages = sum(-(-length // BLOCK) for length, _ in sequences) + 1
        shape = (num_pages, KV_HEADS, BLOCK, DIM)
        pages = [
            (group, KVPages(rand(*shape).to(dtype), rand(*shape).to(dtype))) for group in (0, 1)
        ]
        ctx = batch_of(sequences)
        angles = rand(ctx.num_tokens, DIM // 2)
        rotation = (angles.cos().to(dtype), angles.sin().to(dtype))
        return Case(
            spec,
            pages,
            ctx,
            rand(ctx.num_tokens, HIDDEN).to(dtype),
            {"full": rotation, "window": (rotation[1], rotation[0])},
        )

    return make


def batch_of(sequences: list[tuple[int, int]]) -> ForwardContext:
    """Return a batch of ``(context length, new tokens)``; pages are handed out in order."""
    width = max(-(-length // BLOCK) for length, _ in sequences)
    tables = torch.zeros(len(sequences), width, dtype=torch.int32)
    positions, slots, starts, page = [], [], [0], 1
    for row, (length, num_new) in enumerate(sequences):
        blocks = -(-length // BLOCK)
        tables[row, :blocks] = torch.arange(page, page + blocks)
        new = range(length - num_new, length)
        positions += new
        slots += [int(tables[row, p // BLOCK]) * BLOCK + p % BLOCK for p in new]
        starts.append(starts[-1] + num_new)
        page += blocks
    return ForwardContext(
        input_ids=torch.zeros(starts[-1], dtype=torch.int64),
        positions=torch.tensor(positions),
        query_starts=starts,
        context_lens=[length for length, _ in sequences],
        num_decodes=next((i for i, (_, n) in enumerate(sequences) if n != 1), len(sequences)),
        groups=[GroupContext(tables, torch.tensor(slots), window) for window in (None, 9)],
        logit_rows=torch.zeros(0, dtype=torch.int64),
    )


def fused(case: Case) -> CppStack:
    return CppStack(case.spec, case.pages)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("linear", [dense, coded, narrow, static, float8, float8_rounded])
@pytest.mark.parametrize("options", [{}, {"has_bias": True}, {"head_norms": True}])
def test_has_the_bits_of_the_single_ops(make_case, dtype, linear, options):
    case = make_case(dtype, linear=linear, **options)
    hidden, pages = case.run(fused)
    expected, expected_pages = case.run(Case.op_by_op)
    assert torch.equal(hidden, expected)
    assert torch.equal(pages, expected_pages)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sandwich_layers_equal_the_reference(make_case, dtype):
    """Their inner norms are torch's in the reference, so the last bits may differ."""
    case = make_case(dtype, sandwich=True, head_norms=True)
    hidden, _ = case.run(fused)
    expected, _ = case.run(Case.op_by_op)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(hidden, expected, rtol=tolerance, atol=tolerance)


def test_rows_do_not_depend_on_their_neighbours(make_case):
    """In float32 the bits of a sequence are the same alone and in company, at any thread count."""
    case = make_case()
    together, _ = case.run(fused)
    case.ctx = replace_context(case.ctx, keep=3)
    first, last = case.ctx.query_starts[0], case.ctx.query_starts[-1]
    start = sum(n for _, n in SEQUENCES[:3])
    rows = slice(start, start + last - first)
    case.x = case.x[rows]
    case.rotations = {k: (c[rows], s[rows]) for k, (c, s) in case.rotations.items()}
    threads = torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            alone, _ = case.run(fused)
        finally:
            torch.set_num_threads(threads)
        assert torch.equal(alone, together[rows])


def replace_context(ctx: ForwardContext, keep: int) -> ForwardContext:
    """Return a context with one sequence left."""
    rows = slice(ctx.query_starts[keep], ctx.query_starts[keep + 1])
    num_tokens = rows.stop - rows.start
    return replace(
        ctx,
        input_ids=ctx.input_ids[rows],
        positions=ctx.positions[rows].contiguous(),
        query_starts=[0, num_tokens],
        context_lens=[ctx.context_lens[keep]],
        num_decodes=int(num_tokens == 1),
        groups=[
            GroupContext(g.block_tables[keep : keep + 1], g.slots[rows].contiguous(), g.window)
            for g in ctx.groups
        ],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_evicted_rows_have_the_bits_of_the_single_ops(make_case, dtype):
    """Groups differ in the rows that are left; the rotations stay those of the positions."""
    case = make_case(dtype)
    plain, _ = case.run(fused)
    ctx, rows = case.ctx, case.ctx.positions
    group = replace(ctx.groups[0], rows=rows, row_lens=list(ctx.context_lens))
    case.ctx = replace(ctx, groups=[group, ctx.groups[1]])
    hidden, pages = case.run(fused)
    expected, expected_pages = case.run(Case.op_by_op)
    assert torch.equal(hidden, expected) and torch.equal(hidden, plain)
    assert torch.equal(pages, expected_pages)
    fewer = (rows - 3).clamp(min=0)
    case.ctx = replace(ctx, groups=[replace(group, rows=fewer), ctx.groups[1]])
    hidden, _ = case.run(fused)
    expected, _ = case.run(Case.op_by_op)
    assert torch.equal(hidden, expected) and not torch.equal(hidden, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_are_left_where_they_are_asked_for(make_case, dtype):
    case = make_case(dtype, head_norms=True)
    plain, _ = case.run(fused)
    found = []
    for make in (fused, Case.op_by_op):
        room = torch.full((2, case.x.shape[0], HEADS * DIM), torch.nan, dtype=dtype)
        case.ctx = replace(case.ctx, queries=room)
        hidden, _ = case.run(make)
        assert torch.equal(hidden, plain)
        found.append(room)
    assert torch.equal(found[0], found[1])
    assert found[0].isfinite().all() and not torch.equal(found[0][0], found[0][1])


def test_an_empty_batch_gives_no_rows(make_case):
    case = make_case(sequences=[(3, 3)])
    empty = torch.zeros(0, DIM // 2)
    no_ids = torch.zeros(0, dtype=torch.int64)
    ctx = replace(
        case.ctx, positions=no_ids, query_starts=[0], context_lens=[], num_decodes=0,
        groups=[replace(g, slots=no_ids) for g in case.ctx.groups],
    )  # fmt: skip
    rotations = dict.fromkeys(case.rotations, (empty, empty))
    assert fused(case)(case.x[:0], ctx, rotations).shape == (0, HIDDEN)


def spoil(case: Case, what: str) -> None:
    """Break one thing that a step hands over."""
    ctx, group = case.ctx, case.ctx.groups[1]
    if what == "page":
        group.block_tables[0, 0] = 999
    elif what == "slot":
        group.slots[3] = -1
    elif what == "position":
        ctx.positions[0] = -5
    elif what == "slots":
        group.slots = group.slots[:-1]
    elif what == "cos":
        cos, sin = case.rotations["full"]
        case.rotations["full"] = (cos[:, :4].contiguous(), sin)
    elif what == "x":
        case.x = case.x[:, :-1].contiguous()
    elif what == "type":
        case.x = case.x.double()
    elif what == "starts":
        ctx.query_starts[-1] += 1
    elif what == "group":
        ctx.groups.pop()
    elif what == "rows":
        group.rows = ctx.positions[:-1].contiguous()
    elif what == "row":
        group.rows = ctx.positions - 99
    elif what == "queries":
        ctx.queries = torch.empty(2, case.x.shape[0], HEADS * DIM + 1)
    elif what == "type of queries":
        ctx.queries = torch.empty(2, case.x.shape[0], HEADS * DIM).double()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("page", "holds page 999"),
        ("slot", "slot -1"),
        ("position", "must not be negative"),
        ("slots", "slots must have shape"),
        ("cos", "sin must have shape"),
        ("x", "x must have shape"),
        ("type", "x must be"),
        ("starts", "the sequences hold"),
        ("group", "no group 1"),
        ("rows", "rows must have shape"),
        ("row", "must not be negative"),
        ("queries", "queries must have shape"),
        ("type of queries", "queries must be"),
    ],
)
def test_a_wrong_batch_raises_before_any_layer_runs(make_case, what, message):
    case = make_case()
    stack = fused(case)
    before = [kv.keys.clone() for _, kv in case.pages]
    spoil(case, what)
    with pytest.raises((ValueError, IndexError, TypeError), match=message):
        stack(case.x, case.ctx, case.rotations)
    assert all(torch.equal(b, kv.keys) for b, (_, kv) in zip(before, case.pages, strict=True))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("input_norm", torch.ones(HIDDEN + 1), "input_norm must have shape"),
        ("pre_mlp_norm", torch.ones(HIDDEN), "on both sides or on none"),
        ("down", PackedLinear(torch.ones(HIDDEN, MLP + 1)), "down takes"),
        ("qkv", PackedLinear(torch.ones(7, HIDDEN)), "qkv returns 7 values"),
        ("output", PackedLinear(torch.ones(HIDDEN - 1, HEADS * DIM)), "hidden states of size 48"),
        ("gate_up", PackedLinear(torch.ones(2 * MLP, HIDDEN).bfloat16()), "gate_up holds"),
    ],
)
def test_weights_that_do_not_fit_are_refused(make_case, field, value, message):
    case = make_case()
    first, second = case.spec.layers
    owner = second.mlp if hasattr(second.mlp, field) else second
    changed = replace(owner, **{field: value})
    second = replace(second, mlp=changed) if owner is second.mlp else changed
    case.spec = replace(case.spec, layers=[first, second])
    with pytest.raises((ValueError, TypeError), match=message):
        fused(case)


def test_a_foreign_product_runs_op_by_op_and_says_so(make_case):
    case = make_case(linear=DenseLinear)
    ops = resolve_ops("auto", torch.device("cpu"), torch.float32)
    stack = load_layer_stack()(case.spec, case.pages, ops)
    assert isinstance(stack, OpByOpStack)
    assert stack.choice.backend == "reference"
    assert "DenseLinear" in stack.choice.reason


MIXTURES: dict[str, dict[str, Any]] = {
    "softmax": {"routing": Routing(2)},
    "sigmoid": {"routing": Routing(3, "sigmoid", num_groups=3, top_groups=2, factor=1.5)},
    "shared": {"routing": Routing(2, renormalize=False), "shared": True},
    "gated": {"routing": Routing(1), "shared": True, "gate": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("linear", [dense, coded, static])
@pytest.mark.parametrize("mixture", MIXTURES)
def test_experts_have_the_bits_of_the_single_ops(make_case, dtype, linear, mixture):
    """One layer is dense, one is not; both leave the choices where they are asked for."""
    case = make_case(dtype, linear=linear, experts=MIXTURES[mixture])
    plain, _ = case.run(fused)
    top_k, found = MIXTURES[mixture]["routing"].top_k, []
    for make in (fused, Case.op_by_op):
        room = torch.full((1, case.x.shape[0], top_k), -7)
        case.ctx = replace(case.ctx, expert_ids=room)
        hidden, pages = case.run(make)
        found.append((hidden, pages, room))
    for mine, other in zip(*found, strict=True):
        assert torch.equal(mine, other)
    assert torch.equal(found[0][0], plain)
    assert ((found[0][2] >= 0) & (found[0][2] < EXPERTS)).all()
    assert len(found[0][2].unique()) > 2


def test_experts_do_not_depend_on_a_row_s_neighbours(make_case):
    case = make_case(experts=MIXTURES["gated"])
    together, _ = case.run(fused)
    start = sum(n for _, n in SEQUENCES[:3])
    case.ctx = replace_context(case.ctx, keep=3)
    rows = slice(start, start + SEQUENCES[3][1])
    case.x = case.x[rows]
    case.rotations = {k: (c[rows], s[rows]) for k, (c, s) in case.rotations.items()}
    alone, _ = case.run(fused)
    assert torch.equal(alone, together[rows])


def test_padding_goes_to_no_expert(make_case):
    """Rows that write to the null page; the others do not notice them."""
    case = make_case(experts=MIXTURES["shared"])
    for group in case.ctx.groups:
        group.slots[:2] = torch.tensor([0, 5])
    found = []
    for make in (fused, Case.op_by_op):
        case.ctx = replace(case.ctx, expert_ids=torch.zeros(1, case.x.shape[0], 2).long())
        hidden, _ = case.run(make)
        found.append((hidden, case.ctx.expert_ids))
    for mine, other in zip(*found, strict=True):
        assert torch.equal(mine, other)
    ids = found[0][1][0]
    assert (ids[:2] == -1).all() and (ids[2:] >= 0).all()


@pytest.mark.parametrize(
    ("room", "message"),
    [
        (torch.zeros(1, 3, 2).long(), "expert_ids must have shape"),
        (torch.zeros(2, 53, 2).long(), "expert_ids must have shape"),
        (torch.zeros(1, 53, 2), "expert_ids must be"),
    ],
)
def test_room_for_choices_that_does_not_fit_is_refused(make_case, room, message):
    case = make_case(experts=MIXTURES["softmax"])
    if room.shape[1] > 3:
        room = room.new_zeros(room.shape[0], case.x.shape[0], 2)
    case.ctx = replace(case.ctx, expert_ids=room)
    with pytest.raises((ValueError, TypeError), match=message):
        case.run(fused)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router": PackedLinear(torch.ones(EXPERTS, HIDDEN + 1))}, "router takes"),
        ({"router": PackedLinear(torch.ones(EXPERTS + 1, HIDDEN))}, "router returns 7 values"),
        ({"is_gated": True}, "router returns 6 values"),
        ({"bias": torch.zeros(5)}, "bias must have shape"),
        ({"routing": Routing(7)}, "cannot choose 7 of 6"),
        (
            {"shared": DenseMlp(PackedLinear(torch.ones(2 * MLP, HIDDEN)),
                                PackedLinear(torch.ones(HIDDEN, MLP - 1)))},
            "the shared gate_up must return 158",
        ),
    ],
)  # fmt: skip
def test_mixtures_that_do_not_fit_are_refused(make_case, changes, message):
    case = make_case(experts=MIXTURES["softmax"])
    first, second = case.spec.layers
    second = replace(second, mlp=replace(second.mlp, **changes))
    case.spec = replace(case.spec, layers=[first, second])
    with pytest.raises(ValueError, match=message):
        fused(case)


def test_experts_that_run_one_by_one_run_op_by_op_and_the_reason_says_so(make_case):
    case = make_case(experts=MIXTURES["softmax"], linear=DenseLinear)
    ops = resolve_ops("auto", torch.device("cpu"), torch.float32)
    stack = load_layer_stack()(case.spec, case.pages, ops)
    assert isinstance(stack, OpByOpStack)
    assert "experts run one by one (no cpu: DenseLinear" in stack.choice.reason


def test_norms_over_all_heads_run_op_by_op(make_case):
    case = make_case()
    norms = HeadNorms(torch.ones(HEADS * DIM), torch.ones(KV_HEADS * DIM), 1e-6)
    layers = [replace(layer, row_norms=norms) for layer in case.spec.layers]
    ops = resolve_ops("auto", torch.device("cpu"), torch.float32)
    stack = load_layer_stack()(replace(case.spec, layers=layers), case.pages, ops)
    assert "over all heads" in stack.choice.reason
