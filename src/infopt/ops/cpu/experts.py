"""The experts of a layer in one C++ call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from infopt.ops.cpu.build import extension
from infopt.ops.dispatch import OpChoice

if TYPE_CHECKING:
    from infopt.ops.dispatch import OpSet
    from infopt.ops.experts import Experts, ExpertSpec

logger = logging.getLogger(__name__)


class CppExperts:
    """Sorts tokens by expert and runs each expert once, in the formats its products have.

    Args:
        spec: The experts; each of their products has a ``packed_product``.

    Attributes:
        handle: The extension's object.
    """

    def __init__(self, spec: ExpertSpec) -> None:
        """Hand all weights over."""
        self.choice = OpChoice("cpu", "preferred")
        self.handle = extension().Experts(
            [linear.packed_product for linear in spec.gate_up],  # pyright: ignore
            [linear.packed_product for linear in spec.down],  # pyright: ignore
            spec.activation,
            torch.empty(0, dtype=spec.dtype),
        )

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Run the experts that have tokens."""
        return self.handle.forward(x, ids, weights)


def load_experts() -> Callable[..., Experts]:
    """Return the op; see :mod:`infopt.ops.experts` for its contract."""
    return _make


def _make(spec: ExpertSpec, ops: OpSet) -> Experts:
    """Return the fast experts, or the reference where a product is not packed for them."""
    from infopt.ops.experts import OneByOneExperts

    linears = [*spec.gate_up, *spec.down]
    strangers = {type(x).__name__ for x in linears if not hasattr(x, "packed_product")}
    if not strangers:
        return CppExperts(spec)
    reason = f"no cpu: {', '.join(sorted(strangers))} cannot run inside it"
    logger.info("experts run one by one: %s", reason)
    return OneByOneExperts(spec, ops, reason)
