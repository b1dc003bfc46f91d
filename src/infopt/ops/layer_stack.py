"""All layers of a decoder: what a layer computes, and in which order.

    normed = norm(x);  x += output(attention(rotate_and_write(qkv(normed))))
    normed = norm(x);  x += mlp(normed)

The MLP is dense or a mixture of experts (:mod:`infopt.ops.mlp`). Sandwich layers (Gemma 3) also
norm what attention and MLP return before it is added. The reference calls the other ops one by one;
a backend may run the whole stack in one call, which saves what Python and tensor bookkeeping cost
between two ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from infopt.ops import cpu, gpu
from infopt.ops.context import ForwardContext, KVPages
from infopt.ops.dispatch import Implementation, OpChoice
from infopt.ops.mlp import DenseMlp, Mlp
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
    """Weights of one layer, ready for the ops. Norm weights are float32.

    ``head_norms`` norm each head of query and key, ``row_norms`` all of a token's heads together.
    """

    kind: str
    input_norm: torch.Tensor
    qkv: Linear
    output: Linear
    post_attention_norm: torch.Tensor
    mlp: Mlp
    head_norms: HeadNorms | None
    pre_mlp_norm: torch.Tensor | None
    post_mlp_norm: torch.Tensor | None
    row_norms: HeadNorms | None = None

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All products: qkv, output, gate_up and down where the MLP is dense."""
        return (self.qkv, self.output, *self.mlp.linears)


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
        chosen = iter(() if ctx.expert_ids is None else ctx.expert_ids)
        layers = zip(self.spec.layers, self.pages, strict=True)
        for index, (layer, (group, pages)) in enumerate(layers):
            place = (ctx, group, pages, rotations[layer.kind])
            captured = None if ctx.queries is None else ctx.queries[index]
            attended, total = self._attention(layer, x, residual, *place, captured)
            x, residual = self._mlp(layer, attended, total, ctx, chosen)
        return self.ops.add_rms_norm(x, residual, self.spec.final_norm, self.spec.eps)[0]

    def _padding(self, ctx: ForwardContext) -> torch.Tensor:
        """Tell which rows are computed for nothing: their keys and values go to the null page."""
        return ctx.groups[0].slots < self.pages[0][1].block_size

    def _attention(
        self,
        layer: LayerWeights,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        ctx: ForwardContext,
        group: int,
        pages: KVPages,
        rotation: tuple[torch.Tensor, torch.Tensor],
        captured: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what attention adds, and what it is added to; leave the queries if asked to."""
        spec, ops = self.spec, self.ops
        normed, total = ops.add_rms_norm(x, residual, layer.input_norm, spec.eps)
        kv, qkv = ctx.groups[group], layer.qkv(normed)
        if layer.row_norms is not None:
            qkv = self._norm_rows(qkv, layer.row_norms)
        q = ops.rotary_and_write(qkv, *rotation, pages, kv.slots, layer.head_norms)
        if captured is not None:
            captured.copy_(q.flatten(1))
        if kv.quantized is not None:
            ops.quantize_pages(pages, kv.quantized.jobs)
        attended = ops.attention(q, pages, ctx, kv, spec.attention_scale, spec.attention_softcap)
        return layer.output(attended), total

    def _norm_rows(self, qkv: torch.Tensor, norms: HeadNorms) -> torch.Tensor:
        """Norm queries and keys over all heads of a token."""
        sizes = [norms.query.numel(), norms.key.numel()]
        q, k, v = qkv.split([*sizes, qkv.shape[1] - sum(sizes)], dim=1)
        q, k = (
            self.ops.add_rms_norm(part.contiguous(), None, weight, norms.eps)[0]
            for part, weight in ((q, norms.query), (k, norms.key))
        )
        return torch.cat((q, k, v), dim=1)

    def _mlp(
        self,
        layer: LayerWeights,
        x: torch.Tensor,
        total: torch.Tensor,
        ctx: ForwardContext,
        chosen: Iterator[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the MLP adds, and what it is added to; note the next sparse one's choices."""
        spec, ops, norm = self.spec, self.ops, layer.post_attention_norm
        if layer.pre_mlp_norm is not None:
            x, norm = rms_norm(x, norm, spec.eps), layer.pre_mlp_norm
        normed, total = ops.add_rms_norm(x, total, norm, spec.eps)
        if isinstance(layer.mlp, DenseMlp):
            x = layer.mlp(normed, spec.activation, ops)
        else:
            x = layer.mlp(normed, spec.activation, ops, self._padding(ctx), next(chosen, None))
        if layer.post_mlp_norm is not None:
            x = rms_norm(x, layer.post_mlp_norm, spec.eps)
        return x, total


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_layer_stack, cpu.why_not),
    # On a CPU a fused stack would hide the ops that were asked for.
    Implementation("triton", lambda: _op_by_op, gpu.why_not),
    Implementation("reference", lambda: _op_by_op),
]
"""Each loads a function ``(spec, pages, ops) -> LayerStack``."""


def _op_by_op(spec: StackSpec, pages: LayerPages, ops: OpSet) -> LayerStack:
    return OpByOpStack(spec, pages, ops, ops.choices["layer_stack"].reason)
