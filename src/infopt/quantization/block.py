"""One decoder layer in plain PyTorch: what calibration runs, layer by layer.

Whole sequences at once, no pages and no kernels: float32 on any machine, memory of one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from infopt.models.config import ModelConfig, MoeConfig
from infopt.models.mlp_loader import routing_of
from infopt.models.rope import rope_table
from infopt.models.tensor_names import EXPERTS, ROUTER, SELECTION_BIAS, SHARED_EXPERT, SHARED_GATE
from infopt.ops.activation import gated_activation
from infopt.ops.rms_norm import rms_norm
from infopt.ops.rotary import rotate
from infopt.ops.router import route
from infopt.quantization.layer_inputs import (
    INPUTS,
    MLP_INPUT,
    LayerInputs,
    down_of,
    gate_up_of,
    inputs_of,
)

Observe = Callable[[str, torch.Tensor], torch.Tensor]
"""Sees the input of a product, ``(..., in_features)``, by its name, and returns what to use."""


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
    def inputs(self) -> LayerInputs:
        """What its products read."""
        return inputs_of(self.config, self.index)

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
            observe: Sees, and may change, the input of each product (`Block.inputs`), and sees the
                rows of all tokens before they are routed to experts.
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
        q, k, v = (self._linear(name, x) for name in INPUTS["qkv"])
        if config.qk_norm_rows:
            q, k = self._norm(q, "self_attn.q_norm"), self._norm(k, "self_attn.k_norm")
        q, k, v = (t.unflatten(-1, (-1, config.head_dim)) for t in (q, k, v))
        if config.qk_norm and not config.qk_norm_rows:
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
        moe = self.config.moe
        if moe is not None and moe.is_sparse[self.index]:
            return self._sparse(x.flatten(0, -2), moe, observe).view(x.shape)
        return self._gated("mlp", x, observe, ("gate_up", "down"))

    def _gated(
        self, at: str, x: torch.Tensor, observe: Observe, kinds: tuple[str, str]
    ) -> torch.Tensor:
        """Run a dense MLP: that of the layer, or an expert."""
        x = observe(kinds[0], x)
        both = torch.cat([self._linear(f"{at}.{name}_proj", x) for name in ("gate", "up")], dim=-1)
        inner = gated_activation(both, self.config.activation)
        return self._linear(f"{at}.down_proj", observe(kinds[1], inner))

    def _sparse(self, x: torch.Tensor, moe: MoeConfig, observe: Observe) -> torch.Tensor:
        """Run a mixture of experts on rows ``(num_rows, hidden_size)``."""
        x = observe(MLP_INPUT, x)
        bias = self.tensors.get(SELECTION_BIAS)
        ids, weights = route(self._linear(ROUTER, x), bias, routing_of(moe))
        y = torch.zeros_like(x)
        for expert in ids.unique().tolist():
            rows, places = (ids == expert).nonzero(as_tuple=True)
            found = self._expert(f"{EXPERTS}.{expert}", x[rows], observe)
            y.index_add_(0, rows, weights[rows, places].unsqueeze(1) * found)
        if moe.shared_size is None:
            return y
        shared = self._expert(SHARED_EXPERT, x, observe)
        return y + (self._linear(SHARED_GATE, x).sigmoid() * shared if moe.shared_gate else shared)

    def _expert(self, at: str, x: torch.Tensor, observe: Observe) -> torch.Tensor:
        return self._gated(at, x, observe, (gate_up_of(at), down_of(at)))

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight(name), self.tensors.get(f"{name}.bias"))

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, self.tensors[f"{name}.weight"], self.config.rms_norm_eps)


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
