"""The choice of experts in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from infopt.ops.cpu.build import extension

if TYPE_CHECKING:
    from infopt.ops.router import Routing


def load_route() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return the op; see :func:`infopt.ops.router.route` for its contract."""
    choose = extension().route

    def route(
        logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose experts; scores are rounded differently from the reference's."""
        return choose(logits, bias, routing_values(routing))

    return route


def load_add_shared() -> Callable[..., Any]:
    """Return the op; see :func:`infopt.ops.shared_expert.add_shared` for its contract."""
    return extension().add_shared


def routing_values(routing: Routing) -> tuple[int, int, int, bool, bool, bool, float]:
    """Return how to choose, as the extension takes it."""
    return (
        routing.top_k,
        routing.num_groups,
        routing.top_groups,
        routing.scoring == "sigmoid",
        routing.renormalize,
        routing.best_two,
        routing.factor,
    )
