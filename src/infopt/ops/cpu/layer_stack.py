"""All layers of a decoder in one C++ call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from infopt.ops.context import ForwardContext, GroupContext
from infopt.ops.cpu.attention import code_pages
from infopt.ops.cpu.build import extension
from infopt.ops.cpu.experts import CppExperts
from infopt.ops.cpu.router import routing_values
from infopt.ops.dispatch import OpChoice

if TYPE_CHECKING:
    from infopt.ops.dispatch import OpSet
    from infopt.ops.layer_stack import LayerPages, LayerStack, LayerWeights, Rotations, StackSpec
    from infopt.ops.mlp import SparseMlp

logger = logging.getLogger(__name__)


class CppStack:
    """Runs the same kernels as the single ops, hence with the same bits.

    Args:
        spec: The layers; each of their products has a ``packed_product``.
        pages: Where each layer keeps keys and values.
    """

    def __init__(self, spec: StackSpec, pages: LayerPages) -> None:
        """Hand all weights and pages over."""
        from infopt.ops.mlp import SparseMlp

        self.choice = OpChoice("cpu", "preferred")
        self._kinds = sorted({layer.kind for layer in spec.layers})
        norms = spec.layers[0].head_norms
        self._stack = extension().DecoderStack(
            spec.final_norm,
            spec.eps,
            norms.eps if norms else 0.0,
            spec.attention_scale,
            spec.attention_softcap or 0.0,
            spec.activation,
            torch.empty(0, dtype=spec.dtype),
        )
        for layer, (group, kv) in zip(spec.layers, pages, strict=True):
            mlp = () if isinstance(layer.mlp, SparseMlp) else layer.mlp.linears
            self._stack.add_layer(
                _norms_of(layer),
                [_product_of(linear) for linear in (layer.qkv, layer.output, *mlp)],
                kv.keys,
                kv.values,
                code_pages(kv.quantized),
                group,
                self._kinds.index(layer.kind),
                _sparse_of(layer.mlp) if isinstance(layer.mlp, SparseMlp) else None,
            )

    def __call__(self, x: torch.Tensor, ctx: ForwardContext, rotations: Rotations) -> torch.Tensor:
        """Run all layers and the final norm."""
        num_decodes = ctx.num_decodes
        return self._stack.forward(
            x,
            ctx.positions,
            [_group_of(group) for group in ctx.groups],
            [rotations[kind] for kind in self._kinds],
            ctx.query_starts[num_decodes:] if ctx.num_seqs > num_decodes else [],
            num_decodes,
            ctx.queries,
            ctx.expert_ids,
        )


def load_layer_stack() -> Callable[..., LayerStack]:
    """Return the op; see :mod:`infopt.ops.layer_stack` for its contract."""
    return _make


def _make(spec: StackSpec, pages: LayerPages, ops: OpSet) -> LayerStack:
    """Return the fast stack, or the reference where a product is not packed for it."""
    from infopt.ops.layer_stack import OpByOpStack

    why_not = _why_not(spec)
    if why_not is None:
        return CppStack(spec, pages)
    reason = f"no cpu: {why_not}"
    logger.info("layers run op by op: %s", reason)
    return OpByOpStack(spec, pages, ops, reason)


def _why_not(spec: StackSpec) -> str | None:
    """Return what the C++ stack cannot run, or None."""
    from infopt.ops.mlp import SparseMlp

    mixtures = [layer.mlp for layer in spec.layers if isinstance(layer.mlp, SparseMlp)]
    for mlp in mixtures:
        if not isinstance(mlp.experts, CppExperts):
            return f"experts run one by one ({mlp.experts.choice.reason})"
    if any(layer.row_norms is not None for layer in spec.layers):
        return "queries and keys are normed over all heads together"
    linears = [linear for layer in spec.layers for linear in layer.linears]
    strangers = {type(linear).__name__ for linear in linears if _product_of(linear) is None}
    return f"{', '.join(sorted(strangers))} cannot run inside it" if strangers else None


def _group_of(group: GroupContext) -> tuple[Any, ...]:
    old = group.quantized
    tables = (None, None) if old is None else (old.block_tables, old.jobs)
    return (group.block_tables, group.slots, group.window or 0, group.rows, *tables)


def _sparse_of(mlp: SparseMlp) -> Any:
    """Return a mixture as the extension's object, on the memory of its products."""
    shared = () if mlp.shared is None else mlp.shared.linears
    assert isinstance(mlp.experts, CppExperts)
    return extension().SparseMlp(
        mlp.experts.handle,
        _product_of(mlp.router),
        mlp.bias,
        routing_values(mlp.routing),
        [_product_of(linear) for linear in shared],
        mlp.is_gated,
    )


def _product_of(linear: Any) -> Any:
    return getattr(linear, "packed_product", None)


def _norms_of(layer: LayerWeights) -> list[torch.Tensor | None]:
    heads = layer.head_norms
    return [
        layer.input_norm,
        layer.post_attention_norm,
        layer.pre_mlp_norm,
        layer.post_mlp_norm,
        heads.query if heads else None,
        heads.key if heads else None,
    ]
