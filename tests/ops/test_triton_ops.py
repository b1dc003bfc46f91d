"""The Triton kernels as ops of the decoder: dispatch, mixed batches, batch invariance.

Runs on a GPU where there is one, else in Triton's interpreter.
"""

from __future__ import annotations

import dataclasses
import importlib.util

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infopt.errors import BackendError
from infopt.ops import gpu, resolve_ops
from infopt.ops.context import KVPages
from infopt.ops.dispatch import OpTarget
from infopt.ops.rotary import HeadNorms, rotary_and_write

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MIXED = [(1, 1), (70, 1), (33, 1), (40, 9), (23, 23), (90, 30)]
BOUND = {torch.float32: 4e-6, torch.bfloat16: 4 * 2**-8, torch.float16: 4 * 2**-11}


@pytest.fixture(scope="module")
def attention():
    return gpu.load_attention()


def to_device(batch):
    """Move a batch to the device that kernels run on."""
    pages = KVPages(*(pages.to(DEVICE) for pages in batch.pages[:2]))
    group = dataclasses.replace(batch.group, block_tables=batch.group.block_tables.to(DEVICE))
    ctx = dataclasses.replace(batch.ctx, positions=batch.ctx.positions.to(DEVICE), groups=[group])
    return dataclasses.replace(batch, q=batch.q.to(DEVICE), pages=pages, ctx=ctx, group=group)


def assert_close(batch, attention, softcap=None):
    out = to_device(batch).attend(attention, softcap=softcap).cpu()
    expected = batch.dense(softcap=softcap)
    bound = BOUND[batch.q.dtype] * batch.dense(softcap=softcap, absolute=True).clamp_min(1)
    assert out.dtype == batch.q.dtype
    assert out.shape == expected.shape
    assert ((out.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("dtype", list(BOUND))
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_mixed_batch(attention, make_batch, dtype, window, softcap):
    assert_close(make_batch(MIXED, dtype=dtype, window=window), attention, softcap)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 20])
def test_a_bound_of_the_context_gives_the_bits_of_the_context(
    attention, make_batch, exact_dot, dtype, window
):
    """Captured steps launch for the longest context of their bucket and for rows of padding."""
    lengths = [(1, 1), (70, 1), (300, 1)]
    batch = to_device(make_batch(lengths, dtype=dtype, window=window))
    exact = batch.attend(attention)
    rows, pages = len(lengths) + 2, batch.group.block_tables.shape[1] + 40
    tables = torch.zeros((rows, pages), dtype=torch.int32, device=DEVICE)
    tables[: len(lengths), : batch.group.block_tables.shape[1]] = batch.group.block_tables
    positions = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
    positions[: len(lengths)] = batch.ctx.positions
    q = torch.ones((rows, *batch.q.shape[1:]), dtype=dtype, device=DEVICE)
    q[: len(lengths)] = batch.q
    group = dataclasses.replace(batch.group, block_tables=tables)
    ctx = dataclasses.replace(
        batch.ctx,
        positions=positions,
        query_starts=list(range(rows + 1)),
        context_lens=[pages * batch.pages.block_size] * rows,
        num_decodes=rows,
        shared={},
    )
    wide = dataclasses.replace(batch, q=q, ctx=ctx, group=group).attend(attention)
    assert torch.equal(wide[: len(lengths)], exact)


@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_random_batches(attention, make_batch, data):
    lengths = data.draw(st.lists(st.integers(1, 120), min_size=1, max_size=4))
    new = [data.draw(st.sampled_from([1, 1, length, (length + 1) // 2])) for length in lengths]
    sequences = sorted(zip(lengths, new, strict=True), key=lambda s: s[1] > 1)
    num_kv_heads = data.draw(st.sampled_from([1, 2, 3]))
    batch = make_batch(
        sequences,
        num_kv_heads=num_kv_heads,
        num_heads=num_kv_heads * data.draw(st.sampled_from([1, 3, 5, 8])),
        head_dim=data.draw(st.sampled_from([8, 16, 40, 64])),
        block_size=data.draw(st.sampled_from([3, 16, 32])),
        window=data.draw(st.sampled_from([None, 3, 50])),
        dtype=data.draw(st.sampled_from(list(BOUND))),
        seed=data.draw(st.integers(0, 1000)),
    )
    assert_close(batch, attention, data.draw(st.sampled_from([None, 20.0])))


def test_decodes_over_several_splits(attention, make_batch):
    """16-bit decodes of contexts longer than one split, beside short ones."""
    batch = make_batch([(300, 1), (5, 1), (520, 1)], num_kv_heads=1, dtype=torch.bfloat16)
    assert_close(batch, attention)


def test_float32_rows_have_the_same_bits_alone_and_in_a_chunk(attention, make_batch, exact_dot):
    random = torch.Generator().manual_seed(1)
    data = [tuple(torch.randn(90, h, 64, generator=random) for h in (4, 2, 2)) for _ in range(2)]
    chunk = to_device(make_batch([(90, 90), (90, 70)], data=data)).attend(attention)
    for length in (1, 31, 32, 33, 90):
        decode = to_device(make_batch([(length, 1)], data=data[:1])).attend(attention)
        assert torch.equal(decode[0], chunk[length - 1])
        beside = to_device(make_batch([(17, 1), (length, 1)], data=data[::-1])).attend(attention)
        assert torch.equal(beside[1], decode[0])


def test_null_and_unwritten_rows_do_not_leak(attention, make_batch):
    """Pins a fault of fused kernels: 0 * NaN of a masked row reached the output."""
    for window in (None, 20):
        batch = make_batch(MIXED, window=window)
        assert batch.pages.keys[0].isnan().all()
        assert not to_device(batch).attend(attention).isnan().any()


def test_empty_batch(attention, make_batch):
    assert to_device(make_batch([])).attend(attention).shape == (0, 256)


def test_row_blocks_are_made_once_for_all_layers(attention, make_batch):
    batch = to_device(make_batch([(20, 20)]))
    batch.attend(attention)
    (blocks,) = batch.ctx.shared.values()
    batch.attend(attention)
    (again,) = batch.ctx.shared.values()
    assert again is blocks


def test_rotary_takes_pages_and_norms_of_the_engine():
    torch.manual_seed(0)
    qkv, angles = torch.randn(5, 8 * 16, device=DEVICE), torch.rand(5, 8, device=DEVICE)
    slots = torch.tensor([4, 9, 5, 16, 23], device=DEVICE)
    norms = HeadNorms(*torch.rand(2, 16, device=DEVICE), 1e-6)
    results = []
    for op in (gpu.load_rotary_and_write(), rotary_and_write):
        pages = KVPages(*torch.zeros(2, 6, 2, 4, 16, device=DEVICE))
        results.append((op(qkv, angles.cos(), angles.sin(), pages, slots, norms), *pages[:2]))
    for ours, reference in zip(*results, strict=True):
        assert torch.allclose(ours, reference, atol=1e-5)


def test_auto_never_takes_the_interpreter():
    """Thousands of times slower: it must be asked for by name."""
    target = OpTarget(torch.device("cpu"), torch.float32)
    assert gpu.why_not(target)
    if DEVICE.type == "cpu":
        assert gpu.why_not(dataclasses.replace(target, backend="triton")) is None
        choices = resolve_ops("auto", DEVICE, torch.float32).choices
        assert all(choice.backend != "triton" for choice in choices.values())


def test_a_named_backend_comes_first():
    choices = resolve_ops("triton", DEVICE, torch.float32).choices
    for op in ("add_rms_norm", "gated_activation", "rotary_and_write", "attention"):
        assert choices[op].backend == "triton"


def test_reasons():
    cuda = OpTarget(torch.device("cuda"), torch.float64)
    assert "float64 is not" in (gpu.why_not(cuda) or "")
    wide = OpTarget(DEVICE, torch.float32, "triton", head_dim=512)
    assert gpu.why_not_attention(wide) == "head_dim 512 is above 256"
    with pytest.raises(BackendError, match="head_dim 512"):
        resolve_ops("triton", DEVICE, torch.float32, head_dim=512)


@pytest.mark.parametrize(
    "family",
    ["llama", *(pytest.param(f, marks=pytest.mark.slow) for f in ("qwen3", "gemma3_text"))],
)
def test_engine_runs_a_model(tiny_model_dir, family):
    """Prefill in chunks and decodes through the engine, logits beside the reference's."""
    from infopt import LLM, SamplingParams

    prompts = [[5, 9, 200, 31, 8] * 6, [77, 3, 12]]
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=2)
    found = {}
    for backend in ("reference", "triton"):
        llm = LLM(
            str(tiny_model_dir(family)),
            dtype="float32",
            device=DEVICE.type,
            backend=backend,
            max_num_batched_tokens=16,
            max_num_seqs=2,
            max_model_len=64,
        )
        assert llm.stats()["ops"]["attention"]["backend"] == backend
        outputs = [o.outputs[0] for o in llm.generate(prompts, params, use_tqdm=False)]
        found[backend] = llm.logits(prompts[0]), outputs
    (ours, decoded), (reference, expected) = found["triton"], found["reference"]
    assert ((ours - reference).abs().amax(-1) <= 1e-4 * reference.abs().amax(-1)).all()
    for a, b in zip(decoded, expected, strict=True):
        assert a.token_ids == b.token_ids
        for got, wanted in zip(a.logprobs, b.logprobs, strict=True):
            for token, entry in wanted.items():
                assert got[token].logprob == pytest.approx(entry.logprob, abs=1e-4)
