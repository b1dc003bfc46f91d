"""Checkpoints of any size with random weights: to measure time, which does not depend on values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from infopt.errors import ConfigError

_POOL = 1 << 23
"""Values that are drawn; tensors are cut from them at different places."""


@dataclass(frozen=True, slots=True)
class RandomShape:
    """A dense decoder, or a mixture of experts in all layers, stored in bfloat16.

    Attributes:
        intermediate_size: Width of the MLP, or of an expert.
        num_experts: Experts per layer; 0 for a dense model.
        top_k: Experts that a token goes to.
        num_layers: Layers.
        hidden_size: Width of the model.
        num_heads: Query heads; a quarter as many share keys and values.
        vocab_size: Rows of the embedding, which is the head as well.
    """

    intermediate_size: int
    num_experts: int = 0
    top_k: int = 0
    num_layers: int = 9
    hidden_size: int = 1024
    num_heads: int = 16
    vocab_size: int = 259

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            ConfigError: Names field and value.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            lowest = 0 if field.name in ("num_experts", "top_k") else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ConfigError(
                    f"{field.name} must be a whole number >= {lowest}, got {value!r}.",
                    field=field.name,
                    value=value,
                )
        if not bool(self.num_experts) == bool(self.top_k) or self.top_k > self.num_experts:
            raise ConfigError(
                f"A token cannot go to {self.top_k} of {self.num_experts} experts.",
                field="top_k",
                value=self.top_k,
                remedy="Give both, or neither for a dense model.",
            )
        if self.num_heads % 4 or self.hidden_size % self.num_heads:
            raise ConfigError(
                f"num_heads must be a multiple of 4 that divides hidden_size={self.hidden_size}, "
                f"got {self.num_heads}.",
                field="num_heads",
                value=self.num_heads,
            )


def write_random_checkpoint(folder: str | Path, shape: RandomShape, seed: int = 0) -> Path:
    """Write configuration and weights in Hugging Face's layout, without a tokenizer.

    Args:
        folder: Where to; made if absent.
        shape: Sizes.
        seed: The same seed gives the same bytes.

    Returns:
        The folder.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(shape), indent=2), "utf-8")
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(_POOL, generator=generator).to(torch.bfloat16)
    weights = {name: _cut(pool, size, generator) for name, size in _shapes(shape)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _config(shape: RandomShape) -> dict[str, Any]:
    experts = {"num_local_experts": shape.num_experts, "num_experts_per_tok": shape.top_k}
    is_dense = not shape.num_experts
    return {
        "architectures": ["LlamaForCausalLM" if is_dense else "MixtralForCausalLM"],
        "model_type": "llama" if is_dense else "mixtral",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_heads // 4,
        "head_dim": shape.hidden_size // shape.num_heads,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": None,
        **({} if is_dense else {"sliding_window": None, **experts}),
    }


def _shapes(shape: RandomShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and size of every tensor."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    yield "model.embed_tokens.weight", (shape.vocab_size, hidden)
    yield "model.norm.weight", (hidden,)
    for index in range(shape.num_layers):
        at = f"model.layers.{index}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{name}.weight", (hidden,)
        for name, rows in (("q", hidden), ("k", hidden // 4), ("v", hidden // 4), ("o", hidden)):
            yield f"{at}.self_attn.{name}_proj.weight", (rows, hidden)
        mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        if not shape.num_experts:
            yield from ((f"{at}.mlp.{name}_proj.weight", size) for name, size in mlp.items())
            continue
        yield f"{at}.block_sparse_moe.gate.weight", (shape.num_experts, hidden)
        for expert in range(shape.num_experts):
            for name, size in zip(("w1", "w3", "w2"), mlp.values(), strict=True):
                yield f"{at}.block_sparse_moe.experts.{expert}.{name}.weight", size


def _cut(pool: torch.Tensor, size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return a tensor of drawn values with a variance of 1 / inputs; ones for a norm."""
    if len(size) == 1:
        return torch.ones(size, dtype=pool.dtype)
    count = size[0] * size[1]
    start = int(torch.randint(len(pool), (), generator=generator))
    repeats = -(-(start + count) // len(pool))
    values = pool.repeat(repeats)[start : start + count] if repeats > 1 else pool[start:][:count]
    return (values * size[1] ** -0.5).view(size)
