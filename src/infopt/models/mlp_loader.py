"""Loads the MLP of a layer: dense, or a router with its experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from infopt.models.config import ModelConfig, MoeConfig
from infopt.models.linear_source import LinearFactory, LinearSource, WeightSource
from infopt.models.tensor_names import (
    EXPERTS,
    ROUTER,
    SELECTION_BIAS,
    SHARED_EXPERT,
    SHARED_GATE,
)
from infopt.ops import OpSet
from infopt.ops.experts import ExpertSpec
from infopt.ops.linear import Linear
from infopt.ops.mlp import DenseMlp, Mlp, SparseMlp
from infopt.ops.router import Routing


@dataclass(frozen=True, slots=True)
class MlpLoader:
    """Makes the MLPs of a decoder.

    Attributes:
        config: Architecture.
        weights: Source of the tensors.
        ops: Resolved ops.
        make_linear: Makes the products of dense MLPs and experts.
        device: Where they run.
        dtype: Compute type.
    """

    config: ModelConfig
    weights: WeightSource
    ops: OpSet
    make_linear: LinearFactory
    device: torch.device
    dtype: torch.dtype

    def layer(self, index: int) -> Mlp:
        """Load the MLP of a layer."""
        moe = self.config.moe
        if moe is not None and moe.is_sparse[index]:
            return self._sparse(f"model.layers.{index}", moe)
        return self._dense(f"model.layers.{index}.mlp", self.config.mlp_bias)

    def _sparse(self, at: str, moe: MoeConfig) -> SparseMlp:
        experts = [self._dense(f"{at}.{EXPERTS}.{i}") for i in range(moe.num_experts)]
        spec = ExpertSpec(
            gate_up=[expert.gate_up for expert in experts],
            down=[expert.down for expert in experts],
            activation=self.config.activation,
            dtype=self.dtype,
        )
        has_shared = moe.shared_size is not None
        return SparseMlp(
            router=self._router(at, moe),
            routing=routing_of(moe),
            bias=self._selection_bias(at) if moe.selection_bias else None,
            spec=spec,
            experts=self.ops.experts(spec, self.ops),
            shared=self._dense(f"{at}.{SHARED_EXPERT}") if has_shared else None,
            is_gated=moe.shared_gate,
        )

    def _router(self, at: str, moe: MoeConfig) -> Linear:
        """Load the router, which stays dense: it is small, and a wrong choice costs a whole expert.

        The gate of the shared expert reads the same input, so it is one more row.
        """
        parts = [f"{at}.{ROUTER}", *([f"{at}.{SHARED_GATE}"] if moe.shared_gate else [])]
        source = self._source(f"{at}.{ROUTER}", parts)
        return self.ops.linear(source.weight(), None)

    def _selection_bias(self, at: str) -> torch.Tensor:
        return self.weights.get(f"{at}.{SELECTION_BIAS}", torch.float32).to(self.device)

    def _dense(self, at: str, has_bias: bool = False) -> DenseMlp:
        gate_up = [f"{at}.gate_proj", f"{at}.up_proj"]
        return DenseMlp(
            self.make_linear(self._source(f"{at}.gate_up_proj", gate_up, has_bias)),
            self.make_linear(self._source(f"{at}.down_proj", [f"{at}.down_proj"], has_bias)),
        )

    def _source(self, name: str, parts: Sequence[str], has_bias: bool = False) -> LinearSource:
        return LinearSource(self.weights, name, parts, has_bias, self.dtype, self.device)


def routing_of(moe: MoeConfig) -> Routing:
    """Return how the layers of an architecture choose experts."""
    return Routing(
        top_k=moe.top_k,
        scoring=moe.scoring,
        renormalize=moe.renormalize,
        num_groups=moe.num_groups,
        top_groups=moe.top_groups,
        best_two=moe.best_two,
        factor=moe.routed_scaling,
    )
