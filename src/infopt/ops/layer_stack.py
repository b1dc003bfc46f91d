"""All layers of a decoder: what a layer computes, and in which order.

    normed = norm(x);  x += output(attention(rotate_and_write(qkv(normed))))
    normed = norm(x);  x += down(act(gate) * up)

Sandwich layers (Gemma 3) also norm what attention and MLP return before it is added. The reference
calls the other ops one by one; a backend may run the whole stack in one call, which saves what
Python and tensor bookkeeping cost between two ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from infopt.ops import cpu, gpu
from infopt.ops.context import ForwardContext, KVPages
from infopt.ops.dispatch import Implementation, OpChoice
from infopt.ops.rms_norm import rms_norm
from infopt.ops.rotary import HeadNorms

if TYPE_CHECKING:
    from infopt.ops.dispatch import OpSet
    from infopt.ops.linear import Linear

Rotations = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""Cosines and sines of the batch's positions, ``(num_tokens, head_dim / 2)``, by layer kind."""

LayerPages = Sequence[tuple[int, KVPages]]
"""Per layer, the index of its KV group and its pages."""


@dataclass(slots=True)
class LayerWeights:
    """Weights of one layer, ready for the ops. Norm weights are float32."""

    kind: str
    input_norm: torch.Tensor
    qkv: Linear
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    head_norms: HeadNorms | None
    pre_mlp_norm: torch.Tensor | None
    post_mlp_norm: torch.Tensor | None

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The four products of the layer."""
        return (self.qkv, self.output, self.gate_up, self.down)


@dataclass(frozen=True, slots=True)
class StackSpec:
    """A decoder's layers and what they share.

    Attributes:
        layers: In order.
        final_norm: float32 ``(hidden_size,)``.
        eps: Of the norms.
        attention_scale: Factor of the scores.
        attention_softcap: Bound of the scores, or None.
        activation: ``silu`` or ``gelu_tanh``.
        dtype: Compute type.
    """

    layers: Sequence[LayerWeights]
    final_norm: torch.Tensor
    eps: float
    attention_scale: float
    attention_softcap: float | None
    activation: str
    dtype: torch.dtype


class LayerStack(Protocol):
    """Layers bound to their pages."""

    choice: OpChoice

    def __call__(self, x: torch.Tensor, ctx: ForwardContext, rotations: Rotations) -> torch.Tensor:
        """Return normed hidden states for embeddings, both ``(num_tokens, hidden_size)``."""
        ...


class OpByOpStack:
    """The reference: one op after the other.

    Args:
        spec: The layers.
        pages: Where each layer keeps keys and values.
        ops: What to call.
        reason: Why nothing faster runs.
    """

    def __init__(self, spec: StackSpec, pages: LayerPages, ops: OpSet, reason: str) -> None:
        """Bind layers and pages."""
        self.spec, self.pages, self.ops = spec, pages, ops
        self.choice = OpChoice("reference", reason)

    def __call__(self, x: torch.Tensor, ctx: ForwardContext, rotations: Rotations) -> torch.Tensor:
        """Run all layers and the final norm."""
        residual: torch.Tensor | None = None
        for layer, (group, pages) in zip(self.spec.layers, self.pages, strict=True):
            x, residual = self._layer(layer, x, residual, ctx, group, pages, rotations[layer.kind])
        return self.ops.add_rms_norm(x, residual, self.spec.final_norm, self.spec.eps)[0]

    def _layer(
        self,
        layer: LayerWeights,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        ctx: ForwardContext,
        group: int,
        pages: KVPages,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        spec, ops, eps = self.spec, self.ops, self.spec.eps
        normed, total = ops.add_rms_norm(x, residual, layer.input_norm, eps)
        kv = ctx.groups[group]
        q = ops.rotary_and_write(layer.qkv(normed), *rotation, pages, kv.slots, layer.head_norms)
        attended = ops.attention(q, pages, ctx, kv, spec.attention_scale, spec.attention_softcap)
        x = layer.output(attended)
        if layer.pre_mlp_norm is None or layer.post_mlp_norm is None:
            normed, total = ops.add_rms_norm(x, total, layer.post_attention_norm, eps)
            x = layer.down(ops.gated_activation(layer.gate_up(normed), spec.activation))
            return x, total
        x = rms_norm(x, layer.post_attention_norm, eps)
        normed, total = ops.add_rms_norm(x, total, layer.pre_mlp_norm, eps)
        x = layer.down(ops.gated_activation(layer.gate_up(normed), spec.activation))
        return rms_norm(x, layer.post_mlp_norm, eps), total


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_layer_stack, cpu.why_not),
    # On a CPU a fused stack would hide the ops that were asked for.
    Implementation("triton", lambda: _op_by_op, gpu.why_not),
    Implementation("reference", lambda: _op_by_op),
]
"""Each loads a function ``(spec, pages, ops) -> LayerStack``."""


def _op_by_op(spec: StackSpec, pages: LayerPages, ops: OpSet) -> LayerStack:
    return OpByOpStack(spec, pages, ops, ops.choices["layer_stack"].reason)
