"""Which parts suffer, and how a budget of bits is spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infopt.errors import ConfigError
from infopt.models.checkpoint import open_checkpoint
from infopt.quantization.coded import WeightFormat
from infopt.quantization.sensitivity import (
    Sensitivity,
    allocate,
    measure_sensitivity,
    mixed_formats,
    stored_bits,
)

PARTS = [
    Sensitivity(0, "attention", 100, 0.5),
    Sensitivity(0, "mlp", 300, 0.3),
    Sensitivity(1, "attention", 100, 0.001),
    Sensitivity(None, "head", 500, 0.2),
    Sensitivity(None, "embedding", 500, 0.01),
]


def average(bits: dict[int, int], group: int | None) -> float:
    total = sum(stored_bits(b, group) * PARTS[at].num_weights for at, b in bits.items())
    return total / sum(part.num_weights for part in PARTS)


@pytest.mark.parametrize("budget", [3.6, 3.75, 4.0, 4.5, 5.0, 6.0, 7.9, 8.0])
def test_the_budget_is_kept_and_used(budget: float) -> None:
    bits = allocate(PARTS, budget, 64)
    assert average(bits, 64) <= budget
    # What is left buys nothing more for the smallest part.
    raised = dict.fromkeys(bits, 8)
    assert average(bits, 64) > budget - 5 * 500 / 1500 or bits == raised


def test_the_most_sensitive_weights_get_their_bits_first() -> None:
    bits = allocate(PARTS, 4.65, 64)
    assert bits[0] > bits[2]
    assert bits[0] == 8


def test_a_large_budget_gives_all_parts_eight_bits() -> None:
    assert set(allocate(PARTS, 8.0, 64).values()) == {8}


def test_a_budget_below_the_fewest_bits_says_what_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"average of 3 bits.*at least 3\.58"):
        allocate(PARTS, 3.0, 64)


def test_an_embedding_gets_only_bits_that_lookups_unpack() -> None:
    assert allocate(PARTS, 3.6, 64)[4] == 4
    assert {allocate(PARTS, budget, 64)[4] for budget in (4.0, 5.0, 6.0, 8.0)} <= {4, 8}


def test_the_divergence_of_other_widths_follows_the_step() -> None:
    part = PARTS[0]
    assert part.kl_at(4) == part.kl
    assert part.kl_at(3) == pytest.approx(part.kl * (15 / 7) ** 2)
    assert part.kl_at(8) == pytest.approx(part.kl * (15 / 255) ** 2)


def test_layers_belong_to_one_part_each() -> None:
    format_of = mixed_formats(PARTS, 4.65, 64)
    assert format_of("model.layers.0.self_attn.q_proj") == WeightFormat(8)
    assert format_of("model.layers.1.self_attn.o_proj").bits < 8
    assert format_of("lm_head").bits in (3, 4, 8)
    assert format_of("model.embed_tokens").bits in (4, 8)
    # Layer 1 is no prefix of layer 10.
    with pytest.raises(AssertionError):
        format_of("model.layers.10.self_attn.q_proj")


def test_measured_divergences_are_those_of_one_part_in_four_bits(
    tiny_model_dir: Callable[..., Path],
) -> None:
    from infopt.quantization.block import Block, Rope
    from infopt.quantization.layerwise import embed, read_block
    from infopt.quantization.rtn import rtn

    ids = torch.arange(32).unsqueeze(0)
    with open_checkpoint(tiny_model_dir("llama")) as checkpoint:
        found = measure_sensitivity(checkpoint, ids, 32)
        assert [(s.layer, s.part) for s in found] == [
            (None, "embedding"),
            *((i, part) for i in range(3) for part in ("attention", "mlp")),
            (None, "head"),
        ]
        assert all(s.kl > 0 for s in found)
        # One of them by hand: the MLP of layer 1, all other layers in float.
        rope = Rope(checkpoint.config, 32)
        logits = []
        for rough in (False, True):
            x = embed(checkpoint.config, checkpoint.get("model.embed_tokens.weight"), ids)
            for index in range(3):
                block = read_block(checkpoint, index)
                tensors = dict(block.tensors)
                for name, tensor in block.tensors.items():
                    if rough and index == 1 and name.startswith("mlp.") and "weight" in name:
                        fmt = WeightFormat(4, 32)
                        tensors[name] = rtn(tensor, fmt, scale_dtype=torch.float16).dequantize()
                x = Block(block.config, index, tensors).forward(x, rope)
            from infopt.ops.rms_norm import rms_norm

            x = rms_norm(x, checkpoint.get("model.norm.weight"), checkpoint.config.rms_norm_eps)
            logits.append((x @ checkpoint.get("lm_head.weight").t()).log_softmax(-1))
    expected = (logits[0].exp() * (logits[0] - logits[1])).sum(-1).mean()
    assert found[4].kl == pytest.approx(float(expected), rel=1e-3)
