"""Work and limit of single ops: they add up to the step, and follow their formulas."""

from __future__ import annotations

import pytest

from infopt.bench.roofline import MachinePeaks
from infopt.bench.roofline_ops import OPS, OpRoofline, StepSize, op_rooflines, weight_bytes_by_op
from infopt.bench.step_cost import Precision, step_cost
from infopt.models.config import ModelConfig

H100 = MachinePeaks(3.35e12, 989e12)
FP16 = Precision(weight_bytes=2, kv_bytes=2)


def decoder(**changes) -> ModelConfig:
    values = {
        "family": "llama",
        "vocab_size": 49152,
        "num_real_tokens": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_layers": 30,
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "layer_kinds": ("full",) * 30,
        "attention_scale": 0.125,
    }
    return ModelConfig(**(values | changes))


SMOLLM2 = decoder()
MIXED = decoder(num_layers=2, layer_kinds=("window", "full"), sliding_window=24)


def ops_of(
    config: ModelConfig,
    size: StepSize,
    precision: Precision = FP16,
    peaks: MachinePeaks = H100,
    activation_bytes: float = 0.0,
) -> dict[str, OpRoofline]:
    found = op_rooflines(
        config,
        size,
        peaks,
        weight_bytes=weight_bytes_by_op(config, precision),
        kv_bytes=precision.kv_bytes,
        activation_bytes=activation_bytes,
    )
    assert [o.op for o in found] == list(OPS)
    return {o.op: o for o in found}


@pytest.mark.parametrize("config", [SMOLLM2, MIXED], ids=["full", "mixed"])
@pytest.mark.parametrize(("num_seqs", "cached", "new"), [(8, 499, 1), (1, 0, 128), (3, 40, 7)])
def test_products_and_attention_add_up_to_the_step(config, num_seqs, cached, new, make_step):
    spans = [(cached, new)] * num_seqs
    window = config.sliding_window or 10**9
    keys = [position + 1 for start, n in spans for position in range(start, start + n)]
    step = make_step(
        num_prefill_tokens=num_seqs * new,
        num_logit_rows=num_seqs,
        num_context_tokens=sum(start + n for start, n in spans),
        num_attention_pairs=sum(keys),
        num_window_tokens=sum(min(start + n, window + n - 1) for start, n in spans),
        num_window_pairs=sum(min(k, window) for k in keys),
    )
    cost = step_cost(step, config, FP16)
    ops = ops_of(config, StepSize.uniform(config, num_seqs, cached, new))
    products = [ops[name] for name in ("qkv", "output", "gate_up", "down", "head")]
    assert sum(o.flops for o in products) == cost.linear_flops
    assert sum(o.num_bytes for o in products) == cost.weight_bytes
    assert ops["attention"].flops == cost.attention_flops
    assert ops["attention"].num_bytes == cost.kv_read_bytes
    assert ops["rotary"].num_bytes == cost.kv_write_bytes


def test_intensity_of_products_grows_with_the_batch() -> None:
    """About 2 B / bytes per weight FLOP per byte: B in bf16, 4 B in int4."""
    llama = decoder(hidden_size=4096, intermediate_size=11008, num_heads=32, num_kv_heads=32,
                    head_dim=128)  # fmt: skip
    for weight_bytes in (2.0, 0.5):
        steps = [
            ops_of(llama, StepSize.uniform(llama, n, 1000), Precision(weight_bytes, 2), H100, 2)
            for n in (1, 16, 512)
        ]
        for num_seqs, ops in zip((1, 16), steps[:2], strict=True):
            expected = 2 * num_seqs / weight_bytes
            assert ops["qkv"].intensity_flops_per_byte == pytest.approx(expected, rel=0.05)
        assert [ops["qkv"].bound for ops in steps] == ["memory", "memory", "compute"]
        attention = {ops["attention"].intensity_flops_per_byte for ops in steps}
        assert max(attention) == pytest.approx(min(attention))  # batching never helps there
        assert all(ops["attention"].bound == "memory" for ops in steps)


def test_window_layers_bound_attention() -> None:
    size = StepSize.uniform(MIXED, 1, 999)
    assert (size.num_pairs, size.num_kv_rows) == (1000 + 24, 1000 + 24)
    short = StepSize.uniform(MIXED, 1, 9)
    assert short.num_pairs == 20
    chunk = StepSize.uniform(MIXED, 2, 100, 10)
    assert chunk.num_kv_rows == 2 * (110 + 33)  # the chunk's first token sees 24 keys


def test_small_ops_by_hand() -> None:
    config = decoder(num_layers=1, layer_kinds=("full",), hidden_size=4, intermediate_size=6,
                     num_heads=2, num_kv_heads=1, head_dim=8, vocab_size=10,
                     num_real_tokens=10)  # fmt: skip
    ops = ops_of(config, StepSize(3, 2, 30, 30), activation_bytes=2)
    assert ops["norm"].num_bytes == 3 * 3 * 4 * 4 * 2  # three norms of three rows, four tensors
    assert ops["activation"].num_bytes == 3 * (2 * 6 + 6) * 2
    assert ops["rotary"].num_bytes == 3 * ((16 + 16 + 16) * 2 + 16 * 2)  # q, k, v; q; k and v
    assert ops["rotary"].flops == 3 * 3 * (16 + 8)
    assert ops["sampling"].num_bytes == 2 * 10 * 4


def test_the_slower_limit_binds() -> None:
    size = StepSize.uniform(SMOLLM2, 8, 100)
    memory = ops_of(SMOLLM2, size, peaks=MachinePeaks(1e9, 1e15), activation_bytes=2)
    compute = ops_of(SMOLLM2, size, peaks=MachinePeaks(1e15, 1e9), activation_bytes=2)
    assert {o.bound for o in memory.values()} == {"memory"}
    assert {o.bound for o in compute.values()} == {"compute"}
    assert memory["head"].predicted_s == memory["head"].num_bytes / 1e9
    assert compute["head"].predicted_s == compute["head"].flops / 1e9


def test_ops_without_peaks_have_no_limit() -> None:
    ops = ops_of(SMOLLM2, StepSize.uniform(SMOLLM2, 1, 9), peaks=MachinePeaks(1e11, None))
    assert {(o.bound, o.predicted_s) for o in ops.values()} == {(None, None)}
