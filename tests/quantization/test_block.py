"""The layer that calibration runs is the layer that the engine runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM
from infopt.models.checkpoint import open_checkpoint
from infopt.models.tensor_names import EMBEDDING, FINAL_NORM, HEAD, ROUTER
from infopt.ops.rms_norm import rms_norm
from infopt.quantization.block import Rope
from infopt.quantization.folding import fold
from infopt.quantization.layer_inputs import INPUTS, MLP_INPUT
from infopt.quantization.layerwise import embed, read_block

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    ("mistral", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("gemma3_text", {}),
    ("mixtral", {}),
    ("qwen2_moe", {}),
    ("qwen3_moe", {}),
    ("olmoe", {}),
]


def logits(folder: Path, ids: torch.Tensor, change: Callable[..., None] | None = None):
    """Run all layers and return the logits ``(num_sequences, length, vocab_size)``."""
    with open_checkpoint(folder) as checkpoint, torch.inference_mode():
        config = checkpoint.config
        x, rope = embed(config, checkpoint.get(EMBEDDING), ids), Rope(config, ids.shape[1])
        for index in range(config.num_layers):
            block = read_block(checkpoint, index)
            if change is not None:
                change(block)
            x = block.forward(x, rope)
        x = rms_norm(x, checkpoint.get(FINAL_NORM), config.rms_norm_eps)
        return x @ checkpoint.get(EMBEDDING if config.tie_word_embeddings else HEAD).t()


def random_ids(num_sequences: int = 3, length: int = 50) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 300, (num_sequences, length), generator=generator)


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_layers_agree_with_the_engine(
    tiny_model_dir: Callable[..., Path], family: str, changes: dict[str, Any]
) -> None:
    folder, ids = tiny_model_dir(family, **changes), random_ids()
    found = logits(folder, ids)
    with LLM(str(folder), dtype="float32") as llm:
        for row, sequence in zip(found, ids.tolist(), strict=True):
            expected = llm.logits(sequence)
            error = (row[:, : expected.shape[1]] - expected).abs().max() / expected.abs().max()
            assert float(error) < 1e-4


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize(
    ("family", "changes"), [VARIANTS[2], ("gemma3_text", {"num_key_value_heads": 4})]
)
def test_folding_scales_changes_nothing(
    tiny_model_dir: Callable[..., Path], family: str, changes: dict[str, Any], kind: str
) -> None:
    folder, ids = tiny_model_dir(family, **changes), random_ids()

    def change(block: Any) -> None:
        size = block.weight(INPUTS[kind][0]).shape[1]
        generator = torch.Generator().manual_seed(block.index)
        fold(block, kind, torch.rand(size, generator=generator) + 0.5)

    expected, found = logits(folder, ids), logits(folder, ids, change)
    assert not torch.equal(found, expected)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "olmoe"])
def test_folding_scales_of_experts_changes_nothing(
    tiny_model_dir: Callable[..., Path], family: str
) -> None:
    """Router and gate of the shared expert read what is scaled, too: their weights follow."""
    folder, ids = tiny_model_dir(family), random_ids()

    def change(block: Any) -> None:
        generator = torch.Generator().manual_seed(block.index)
        for kind in block.inputs.scalings:
            size = block.weight(block.inputs.scaled_readers(kind)[0]).shape[1]
            fold(block, kind, torch.rand(size, generator=generator) * 4 + 0.2)

    expected, found = logits(folder, ids), logits(folder, ids, change)
    assert not torch.equal(found, expected)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


def test_scaling_what_a_router_reads_leaves_its_logits_alone(
    tiny_model_dir: Callable[..., Path],
) -> None:
    """Scales are powers of two there: not one bit of a score changes, in any type of weights."""
    seen: list[torch.Tensor] = []
    with open_checkpoint(tiny_model_dir("mixtral")) as checkpoint:
        block = read_block(checkpoint, 0)
        x = embed(checkpoint.config, checkpoint.get(EMBEDDING), random_ids(1, 30))

        def observe(kind: str, rows: torch.Tensor) -> torch.Tensor:
            if kind == MLP_INPUT:
                seen.append(rows @ block.weight(ROUTER).t())
            return rows

        block.forward(x, Rope(checkpoint.config, 30), observe)
        fold(block, MLP_INPUT, torch.rand(64) * 4 + 0.2, torch.bfloat16)
        block.forward(x, Rope(checkpoint.config, 30), observe)
    assert torch.equal(*seen)


def test_the_input_of_each_product_is_seen_once(tiny_model_dir: Callable[..., Path]) -> None:
    seen: list[tuple[str, int]] = []

    def observe(kind: str, x: torch.Tensor) -> torch.Tensor:
        seen.append((kind, x.shape[-1]))
        return x

    ids = random_ids(2, 8)
    with open_checkpoint(tiny_model_dir("llama")) as checkpoint:
        read_block(checkpoint, 0).forward(
            embed(checkpoint.config, checkpoint.get(EMBEDDING), ids),
            Rope(checkpoint.config, 8),
            observe,
        )
    assert seen == [("qkv", 64), ("output", 64), ("gate_up", 64), ("down", 128)]
