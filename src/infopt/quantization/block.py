"""One decoder layer in plain PyTorch: what calibration runs, layer by layer.

Whole sequences at once, no pages and no kernels: float32 on any machine, memory of one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from infopt.errors import WeightFormatError
from infopt.models.config import ModelConfig
from infopt.models.rope import rope_table
from infopt.ops.activation import gated_activation
from infopt.ops.rms_norm import rms_norm
from infopt.ops.rotary import rotate

Observe = Callable[[str, torch.Tensor], torch.Tensor]
"""Sees the input of a product, ``(..., in_features)``, by its name, and returns what to use."""

INPUTS: Mapping[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Inputs of a layer's products, and who reads each."""

LINEARS = tuple(name for readers in INPUTS.values() for name in readers)


def refuse_experts(config: ModelConfig, model: str) -> None:
    """Refuse a mixture of experts, which a `Block` does not run.

    Args:
        config: Architecture.
        model: Name, for the message.

    Raises:
        WeightFormatError: If the model has experts.
    """
    moe = config.moe
    if moe is not None:
        raise WeightFormatError(
            f"{model} has {moe.num_experts} experts in {moe.num_sparse_layers} of "
            f"its layers (MoE), and quantizing layer by layer does not run experts.",
            field="quantization",
            value=config.family,
            remedy="Use a scheme that rounds weights when they are loaded, such as int8 or "
            "int4-rtn-g64.",
        )


@dataclass(slots=True)
class Block:
    """One layer.

    Attributes:
        config: Architecture.
        index: Which layer.
        tensors: float32 tensors by name within the layer (``mlp.up_proj.weight``); norms are the
            multiplier itself.
    """

    config: ModelConfig
    index: int
    tensors: dict[str, torch.Tensor]

    @property
    def prefix(self) -> str:
        """Canonical name of the layer, with the dot."""
        return f"model.layers.{self.index}."

    def weight(self, name: str) -> torch.Tensor:
        """Return the weight of a linear layer."""
        return self.tensors[f"{name}.weight"]

    def forward(
        self, x: torch.Tensor, rope: Rope, observe: Observe = lambda _, rows: rows
    ) -> torch.Tensor:
        """Run the layer.

        Args:
            x: ``(num_sequences, length, hidden_size)``, sequences that start at position 0.
            rope: Rotations.
            observe: Sees, and may change, the input of each product.
        """
        config = self.config
        attended = self._attention(self._norm(x, "input_layernorm"), rope, observe)
        if config.sandwich_norms:
            x = x + self._norm(attended, "post_attention_layernorm")
            normed = self._norm(x, "pre_feedforward_layernorm")
            return x + self._norm(self._mlp(normed, observe), "post_feedforward_layernorm")
        x = x + attended
        return x + self._mlp(self._norm(x, "post_attention_layernorm"), observe)

    def _attention(self, x: torch.Tensor, rope: Rope, observe: Observe) -> torch.Tensor:
        config = self.config
        x = observe("qkv", x)
        q, k, v = (self._linear(name, x).unflatten(-1, (-1, config.head_dim)) for name in _QKV)
        if config.qk_norm:
            q, k = self._norm(q, "self_attn.q_norm"), self._norm(k, "self_attn.k_norm")
        kind = config.layer_kinds[self.index]
        q, k = rope.rotate(q, kind), rope.rotate(k, kind)
        groups = config.num_heads // config.num_kv_heads
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        mask = rope.mask(kind)
        if config.attention_softcap is None:
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=config.attention_scale
            )
        else:
            y = self._capped(q, k, v, mask if mask is not None else rope.causal())
        return self._linear("self_attn.o_proj", observe("output", y.transpose(1, 2).flatten(2)))

    def _capped(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        cap = self.config.attention_softcap
        assert cap is not None
        scores = torch.tanh(q @ k.transpose(-1, -2) * self.config.attention_scale / cap) * cap
        return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ v

    def _mlp(self, x: torch.Tensor, observe: Observe) -> torch.Tensor:
        x = observe("gate_up", x)
        both = torch.cat([self._linear("mlp.gate_proj", x), self._linear("mlp.up_proj", x)], dim=-1)
        return self._linear(
            "mlp.down_proj", observe("down", gated_activation(both, self.config.activation))
        )

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight(name), self.tensors.get(f"{name}.bias"))

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, self.tensors[f"{name}.weight"], self.config.rms_norm_eps)


_QKV = INPUTS["qkv"]


class Rope:
    """Rotations and masks of sequences of one length.

    Args:
        config: Architecture.
        length: Tokens per sequence.
    """

    def __init__(self, config: ModelConfig, length: int) -> None:
        """Compute the tables."""
        self._config, self._length = config, length
        ropes = {"full": config.rope, "window": config.rope_window or config.rope}
        self._tables = {
            kind: rope_table(ropes[kind], config.head_dim, length, torch.float32)
            for kind in set(config.layer_kinds)
        }

    def rotate(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        """Rotate heads ``(num_sequences, length, num_heads, head_dim)``."""
        cos, sin = (t.repeat(x.shape[0], 1) for t in self._tables[kind])
        return rotate(x.flatten(0, 1), cos, sin).view(x.shape)

    def mask(self, kind: str) -> torch.Tensor | None:
        """Return which keys a query sees, ``(length, length)``; None where all earlier ones."""
        window = self._config.sliding_window
        if kind != "window" or window is None or window >= self._length:
            return None
        return self.causal().triu(1 - window)

    def causal(self) -> torch.Tensor:
        """Return the mask of all earlier keys."""
        return torch.ones(self._length, self._length, dtype=torch.bool).tril()
