"""Mixture-of-experts values of a Hugging Face ``config.json``, family by family."""

from __future__ import annotations

from typing import Any

from infopt.errors import CheckpointError
from infopt.models.config import MoeConfig


def mixtral(config: Any) -> MoeConfig | None:
    """Return the experts of a Mixtral: all layers, weights that sum to 1."""
    return _moe(config, size=config.intermediate_size, renormalize=True)


def olmoe(config: Any) -> MoeConfig | None:
    """Return the experts of an OLMoE: all layers."""
    return _moe(config, size=config.intermediate_size, renormalize=config.norm_topk_prob)


def qwen3_moe(config: Any) -> MoeConfig | None:
    """Return the experts of a Qwen3 MoE, in the layers that its configuration names."""
    return _moe(
        config,
        size=config.moe_intermediate_size,
        renormalize=config.norm_topk_prob,
        is_sparse=_sparse_layers(config),
    )


def qwen2_moe(config: Any) -> MoeConfig | None:
    """Return the experts of a Qwen2 MoE, with a shared expert that has a gate."""
    _check_size("shared_expert_intermediate_size", config.shared_expert_intermediate_size)
    return _moe(
        config,
        size=config.moe_intermediate_size,
        renormalize=config.norm_topk_prob,
        is_sparse=_sparse_layers(config),
        shared_size=config.shared_expert_intermediate_size,
        shared_gate=True,
    )


def _sparse_layers(config: Any) -> tuple[bool, ...]:
    """Every n-th layer, but for those that are listed as dense."""
    step = config.decoder_sparse_step
    _check_size("decoder_sparse_step", step)
    return tuple(
        config.num_experts > 0 and (index + 1) % step == 0 and index not in config.mlp_only_layers
        for index in range(config.num_hidden_layers)
    )


def _moe(
    config: Any,
    *,
    size: int,
    renormalize: bool,
    is_sparse: tuple[bool, ...] | None = None,
    shared_size: int | None = None,
    shared_gate: bool = False,
) -> MoeConfig | None:
    """Check the values; None where no layer is sparse."""
    if is_sparse is None:
        is_sparse = tuple([True] * config.num_hidden_layers)
    if not any(is_sparse):
        return None
    num_experts, top_k = config.num_experts, config.num_experts_per_tok
    _check_size("num_experts", num_experts)
    _check_size("expert width", size)
    if not 1 <= top_k <= num_experts:
        raise CheckpointError(
            f"config.json sends each token to {top_k} of {num_experts} experts.",
            field="num_experts_per_tok",
            value=top_k,
            remedy=f"Valid: 1 to {num_experts}.",
        )
    return MoeConfig(
        num_experts=num_experts,
        top_k=top_k,
        intermediate_size=size,
        is_sparse=is_sparse,
        renormalize=renormalize,
        shared_size=shared_size,
        shared_gate=shared_gate,
    )


def _check_size(field: str, value: Any) -> None:
    if not isinstance(value, int) or value < 1:
        raise CheckpointError(
            f"{field} in config.json is {value!r}, it must be a positive number.",
            field=field,
            value=value,
        )
