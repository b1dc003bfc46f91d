"""The experts of a layer in two grouped products."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from infopt.ops.dispatch import OpChoice

if TYPE_CHECKING:
    from infopt.ops.dispatch import OpSet
    from infopt.ops.experts import Experts, ExpertSpec

logger = logging.getLogger(__name__)


class GroupedExperts:
    """Sorts tokens by expert on the device and multiplies all experts in one launch.

    Nothing waits for the device, so ids are not checked.

    Args:
        spec: The experts; their products hold plain weights.
        ops: For the activation.
    """

    def __init__(self, spec: ExpertSpec, ops: OpSet) -> None:
        """Stack the weights; the products then share that memory."""
        self.choice = OpChoice("triton", "preferred")
        self._activate, self._activation = ops.gated_activation, spec.activation
        self._num_experts = len(spec.gate_up)
        self._gate_up, self._down = (
            _stack(linears) for linears in (list(spec.gate_up), list(spec.down))
        )

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Run the experts that have tokens."""
        from infopt.kernels.triton_ops import grouped_linear as grouped

        if not ids.numel():
            return torch.zeros_like(x)
        nobody = self._num_experts  # stands for -1: an expert more, whose blocks have no work
        wanted = ids.masked_fill(ids < 0, nobody).int()
        rows = grouped.block_rows(x.dtype, ids.numel(), nobody)
        blocks = grouped.plan_experts(wanted, nobody + 1, rows)
        idle = blocks.expert == nobody
        blocks = dataclasses.replace(blocks, expert=blocks.expert.masked_fill(idle, -1))
        wide = grouped.grouped_linear(x, self._gate_up, blocks)
        inner = self._activate(wide, self._activation)
        results = grouped.grouped_linear(inner, self._down, blocks, per_slot=True)
        return self._weigh(results.view(*ids.shape, -1), ids, weights)

    def _weigh(
        self, results: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Add results in the order of the choices; those of nobody were never written."""
        skipped = ids < 0
        results = results.masked_fill(skipped.unsqueeze(-1), 0.0)
        weights = weights.masked_fill(skipped, 0.0)
        total = weights[:, :1] * results[:, 0].float()
        for place in range(1, ids.shape[1]):
            total = total + weights[:, place : place + 1] * results[:, place].float()
        return total.to(results.dtype)


def _stack(linears: list) -> torch.Tensor:
    stacked = torch.stack([linear.weight for linear in linears])
    for linear, weight in zip(linears, stacked, strict=True):
        linear.weight = weight
    return stacked


def load_experts() -> Callable[..., Experts]:
    """Return the op; see :mod:`infopt.ops.experts` for its contract."""
    return _make


def _make(spec: ExpertSpec, ops: OpSet) -> Experts:
    """Return grouped experts, or the reference where a product is no plain weight."""
    from infopt.ops.experts import OneByOneExperts
    from infopt.ops.linear import DenseLinear

    linears = [*spec.gate_up, *spec.down]
    strangers = {type(x).__name__ for x in linears if not isinstance(x, DenseLinear)}
    if not strangers and all(linear.bias is None for linear in linears):  # pyright: ignore
        return GroupedExperts(spec, ops)
    reason = f"no triton: {', '.join(sorted(strangers)) or 'a bias'} cannot be grouped"
    logger.info("experts run one by one: %s", reason)
    return OneByOneExperts(spec, ops, reason)
