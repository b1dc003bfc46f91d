# pyright: reportOptionalOperand=false, reportOperatorIssue=false

import math
from dataclasses import replace

import pytest

from infopt.bench.roofline import MachinePeaks, predicted_seconds, roofline_point
from infopt.bench.roofline_log import phase_of, summarize_roofline
from infopt.bench.step_cost import Precision, StepCost, engine_precision, step_cost
from infopt.errors import MeasurementError
from infopt.models.config import ModelConfig, MoeConfig

FP16 = Precision(weight_bytes=2, kv_bytes=2)
H100 = MachinePeaks(3.35e12, 989e12)


def decoder(layers, hidden, inter, heads, kv_heads, head_dim, vocab, **other) -> ModelConfig:
    values = {
        "family": "llama",
        "vocab_size": vocab,
        "num_real_tokens": vocab,
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 8192,
        "layer_kinds": ("full",) * layers,
        "attention_scale": head_dim**-0.5,
    }
    return ModelConfig(**(values | other))


SMOLLM2 = decoder(30, 576, 1536, 9, 3, 64, 49152, tie_word_embeddings=True)
LLAMA_2_7B = decoder(32, 4096, 11008, 32, 32, 128, 32000)
LLAMA_31_8B = decoder(32, 4096, 14336, 32, 8, 128, 128256)


@pytest.mark.parametrize(
    ("config", "num_bytes"),
    [(SMOLLM2, 23_040), (LLAMA_2_7B, 524_288), (LLAMA_31_8B, 131_072)],
    ids=["smollm2-135m", "llama-2-7b", "llama-3.1-8b"],
)
def test_kv_bytes_per_token_are_the_published_ones(config, num_bytes: int, make_step) -> None:
    step = make_step(num_decode_tokens=1, num_context_tokens=1000, num_logit_rows=1)
    cost = step_cost(step, config, FP16)
    assert cost.kv_write_bytes == num_bytes == config.kv_bytes_per_token(2)
    assert cost.kv_read_bytes == 1000 * num_bytes


def test_a_decode_step_reads_every_weight_once(make_step) -> None:
    """All parameters but the norms (and but the input embedding, unless the head is tied to it)."""
    step = make_step(num_decode_tokens=8, num_logit_rows=8)
    norms = (2 * 30 + 1) * 576
    assert step_cost(step, SMOLLM2, FP16).weight_bytes == 2 * (SMOLLM2.num_parameters - norms)
    norms, embedding = (2 * 32 + 1) * 4096, 32000 * 4096
    expected = 2 * (LLAMA_2_7B.num_parameters - norms - embedding)
    assert step_cost(step, LLAMA_2_7B, FP16).weight_bytes == expected


def test_a_chunk_without_logits_does_not_read_the_head(make_step) -> None:
    without = step_cost(make_step(num_prefill_tokens=64), SMOLLM2, FP16)
    with_head = step_cost(make_step(num_prefill_tokens=64, num_logit_rows=1), SMOLLM2, FP16)
    assert with_head.weight_bytes - without.weight_bytes == 2 * 49152 * 576
    assert with_head.linear_flops - without.linear_flops == 2 * 49152 * 576
    assert without.embedding_bytes == 64 * 576 * 2


def test_prefill_flops_follow_the_formula(make_step) -> None:
    """2 N T + 2 L d T^2 for a causal prefill, where d is the width of the queries."""
    tokens = 2048
    pairs = tokens * (tokens + 1) // 2
    step = make_step(num_prefill_tokens=tokens, num_attention_pairs=pairs, num_logit_rows=tokens)
    cost = step_cost(step, LLAMA_2_7B, FP16)
    active = LLAMA_2_7B.num_parameters - 32000 * 4096  # the input embedding is a look-up
    assert cost.linear_flops == pytest.approx(2 * active * tokens, rel=1e-3)
    assert cost.attention_flops == pytest.approx(2 * 32 * 4096 * tokens**2, rel=1e-3)


def test_share_of_kv_bytes_is_the_published_one(make_step) -> None:
    """Llama-3.1-8B at 4k tokens: about 3 % of the bytes at batch 1, 68 % at batch 64."""
    for batch, share in ((1, 0.03), (64, 0.68)):
        step = make_step(
            num_decode_tokens=batch, num_context_tokens=4096 * batch, num_logit_rows=batch
        )
        cost = step_cost(step, LLAMA_31_8B, FP16)
        assert cost.kv_bytes / cost.num_bytes == pytest.approx(share, abs=0.02)


def test_window_layers_read_their_window_only(make_step) -> None:
    kinds = ("window", "window", "full")
    config = decoder(3, 64, 128, 4, 2, 16, 320, layer_kinds=kinds, sliding_window=24)
    step = make_step(
        num_decode_tokens=1,
        num_context_tokens=100,
        num_window_tokens=24,
        num_attention_pairs=100,
        num_window_pairs=24,
    )
    cost = step_cost(step, config, Precision(4, 4))
    row = 2 * 2 * 16 * 4
    assert cost.kv_read_bytes == row * (1 * 100 + 2 * 24)
    assert cost.kv_write_bytes == row * 3
    assert cost.attention_flops == 4 * 4 * 16 * (1 * 100 + 2 * 24)


def test_precisions_are_kept_apart(make_step) -> None:
    step = make_step(num_decode_tokens=2, num_logit_rows=2)
    mixed = step_cost(step, SMOLLM2, Precision(0.5, 2, embedding_bytes=4, head_bytes=1))
    half = step_cost(step, SMOLLM2, Precision(0.5, 2))
    assert mixed.embedding_bytes == 2 * 576 * 4
    assert mixed.weight_bytes - half.weight_bytes == 49152 * 576 * (1 - 0.5)
    assert mixed.flops == half.flops


def test_old_rows_are_read_in_their_own_bytes(make_step) -> None:
    """Pins: a quantized cache was counted as if every row were read in full precision.

    Two sequences with 500 rows each of which the newest 128 are kept in full.
    """
    step = make_step(num_decode_tokens=2, num_seqs=2, num_context_tokens=1000)
    coded = Precision(2, 2, old_kv_bytes=0.6, num_new_rows=128)
    channels = 2 * SMOLLM2.kv_size * SMOLLM2.num_layers
    expected = channels * (2 * 128 * 2 + (1000 - 2 * 128) * 0.6)
    assert step_cost(step, SMOLLM2, coded).kv_read_bytes == pytest.approx(expected)
    short = make_step(num_decode_tokens=2, num_seqs=2, num_context_tokens=200)
    plain = step_cost(short, SMOLLM2, Precision(2, 2)).kv_read_bytes
    assert step_cost(short, SMOLLM2, coded).kv_read_bytes == plain


def test_an_engine_says_what_its_old_rows_take() -> None:
    """Two of three KV groups are coded, at 0.3 of the bytes: their values take 0.6 of two bytes."""
    kept = {
        "bytes_per_new_token": 3000.0,
        "bytes_per_old_token": 1000.0 + 2 * 300.0,
        "num_quantized_groups": 2,
        "residual": 128,
    }
    facts = {"dtype": "bfloat16", "bytes_per_weight": 0.6, "num_kv_groups": 3}
    found = engine_precision(facts | {"kv_cache": kept})
    assert found.old_kv_bytes == pytest.approx(0.6)
    assert found.num_new_rows == 128
    assert engine_precision(facts | {"kv_cache": {"dtype": "auto"}}).old_kv_bytes is None


def test_padding_is_computed_but_not_stored(make_step) -> None:
    padded = step_cost(make_step(num_decode_tokens=1, num_padding_tokens=3), SMOLLM2, FP16)
    plain = step_cost(make_step(num_decode_tokens=1), SMOLLM2, FP16)
    assert padded.linear_flops == 4 * plain.linear_flops
    assert padded.kv_write_bytes == plain.kv_write_bytes


def test_ridge_points_of_published_machines() -> None:
    assert MachinePeaks(3.35e12, 989e12).ridge_flops_per_byte == pytest.approx(295, abs=1)
    assert MachinePeaks(2.04e12, 312e12).ridge_flops_per_byte == pytest.approx(153, abs=1)
    assert MachinePeaks(4.8e12, 989e12).ridge_flops_per_byte == pytest.approx(206, abs=1)


def test_a_published_bandwidth_figure() -> None:
    """A 7B model in bf16 (13.3 GB) at 104.9 tokens/s moves 1.40 TB/s."""
    cost = StepCost(weight_bytes=13.3e9)
    point = roofline_point(cost, 1 / 104.9, MachinePeaks(1.7e12, 312e12))
    assert point.mbu * 1.7e12 == pytest.approx(1.397e12, rel=0.005)
    assert point.mbu == pytest.approx(0.82, abs=0.005)


def regime(cost: StepCost, slowdown: float = 1.2) -> str | None:
    return roofline_point(cost, slowdown * predicted_seconds(cost, H100), H100).regime


def test_regimes() -> None:
    assert regime(StepCost(weight_bytes=1e9, kv_read_bytes=1e8)) == "weight-bandwidth"
    assert regime(StepCost(weight_bytes=1e9, kv_read_bytes=2e9)) == "kv-bandwidth"
    assert regime(StepCost(weight_bytes=1e9, linear_flops=1e13)) == "compute"
    assert regime(StepCost(weight_bytes=1e9), slowdown=2.1) == "overhead"


def test_unknown_peaks_give_none() -> None:
    cost = StepCost(weight_bytes=1e9, linear_flops=1e9)
    unknown = roofline_point(cost, 1.0, MachinePeaks(None, None))
    assert (unknown.predicted_s, unknown.mbu, unknown.mfu, unknown.regime) == (None,) * 4
    bandwidth = roofline_point(cost, 1.0, MachinePeaks(2e9, None))
    assert (bandwidth.predicted_s, bandwidth.mbu, bandwidth.mfu) == (None, 0.5, None)
    assert unknown.to_dict()["bytes"] == 1e9


def test_a_duration_of_zero_is_refused() -> None:
    with pytest.raises(MeasurementError, match="positive duration"):
        roofline_point(StepCost(weight_bytes=1), 0.0, H100)


def test_phases(make_step) -> None:
    assert phase_of(make_step(num_decode_tokens=3)) == "decode"
    assert phase_of(make_step(num_prefill_tokens=3)) == "prefill"
    assert phase_of(make_step(num_prefill_tokens=3, num_decode_tokens=1)) == "mixed"


def test_a_log_adds_up(make_step) -> None:
    decode = make_step(
        num_decode_tokens=4, num_context_tokens=400, num_logit_rows=4, duration_s=1e-3
    )
    prefill = make_step(
        num_prefill_tokens=512,
        num_attention_pairs=512 * 513 // 2,
        num_logit_rows=1,
        duration_s=3e-3,
    )
    bounds = [predicted_seconds(step_cost(s, SMOLLM2, FP16), H100) for s in (decode, prefill)]
    summary = summarize_roofline([decode, prefill, decode], SMOLLM2, FP16, H100)
    assert summary.num_steps == 3
    assert summary.total.measured_s == pytest.approx(5e-3)
    assert summary.total.predicted_s == pytest.approx(2 * bounds[0] + bounds[1])
    assert summary.regime_shares == {"overhead": 1.0}
    only = summarize_roofline([decode, prefill, decode], SMOLLM2, FP16, H100, phase="decode")
    assert only.num_steps == 2
    assert only.total.cost == step_cost(decode, SMOLLM2, FP16) + step_cost(decode, SMOLLM2, FP16)


def test_regime_of_a_log_is_the_one_that_took_longest(make_step) -> None:
    step = make_step(num_decode_tokens=1, num_logit_rows=1)
    bound = predicted_seconds(step_cost(step, SMOLLM2, FP16), H100)
    tight, loose = replace(step, duration_s=1.1 * bound), replace(step, duration_s=5 * bound)
    summary = summarize_roofline([tight] * 9 + [loose], SMOLLM2, FP16, H100)
    assert summary.total.regime == "weight-bandwidth"
    assert summary.regime_shares["overhead"] == pytest.approx(5 / (9 * 1.1 + 5))
    assert math.isclose(sum(summary.regime_shares.values()), 1)


def test_a_log_without_such_steps_has_no_summary(make_step) -> None:
    assert summarize_roofline([], SMOLLM2, FP16, H100) is None
    step = make_step(num_decode_tokens=1, duration_s=1.0)
    assert summarize_roofline([step], SMOLLM2, FP16, H100, phase="prefill") is None


MIXTRAL = decoder(32, 4096, 14336, 32, 8, 128, 32000, moe=MoeConfig(8, 2, 14336, (True,) * 32))


@pytest.mark.parametrize(("batch", "touched"), [(1, 2), (2, 3.5), (4, 5.47), (16, 7.92)])
def test_a_step_reads_the_experts_that_its_tokens_touch(make_step, batch, touched) -> None:
    step = make_step(num_decode_tokens=batch, num_logit_rows=batch)
    expert, norms, embedding = 3 * 4096 * 14336, (2 * 32 + 1) * 4096, 32000 * 4096
    shared = MIXTRAL.num_parameters - norms - embedding - 32 * 8 * expert
    read = step_cost(step, MIXTRAL, FP16).weight_bytes / 2
    assert (read - shared) / (32 * expert) == pytest.approx(touched, abs=0.01)


def test_a_token_computes_its_own_experts_only(make_step) -> None:
    norms, embedding = (2 * 32 + 1) * 4096, 32000 * 4096
    for batch in (1, 64):
        step = make_step(num_decode_tokens=batch, num_logit_rows=batch)
        active = MIXTRAL.num_active_parameters - norms - embedding
        assert step_cost(step, MIXTRAL, FP16).linear_flops == 2 * active * batch


def test_padding_computes_no_expert(make_step) -> None:
    plain = step_cost(make_step(num_decode_tokens=2), MIXTRAL, FP16)
    padded = step_cost(make_step(num_decode_tokens=2, num_padding_tokens=3), MIXTRAL, FP16)
    attention = 32 * (2 * 4096 * (4096 + 1024) + 8 * 4096)
    assert padded.linear_flops - plain.linear_flops == 3 * 2 * attention
    assert padded.weight_bytes == plain.weight_bytes


def test_dense_layers_and_shared_experts_are_read_whole(make_step) -> None:
    """Two layers, one of them sparse, with a router, a gate and a shared expert."""
    moe = MoeConfig(8, 2, 16, (False, True), shared_size=24, shared_gate=True)
    config = decoder(2, 64, 128, 4, 2, 16, 320, moe=moe)
    attention, dense = 2 * 64 * (64 + 32), 3 * 64 * 128
    sparse = 8 * 64 + 64 + 3 * 64 * 24 + 2 * (3 * 64 * 16)
    cost = step_cost(make_step(num_decode_tokens=1), config, FP16)
    assert cost.weight_bytes == 2 * (2 * attention + dense + sparse)
    assert cost.linear_flops == cost.weight_bytes
