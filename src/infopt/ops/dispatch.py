"""Chooses one implementation per op and records the choice.

An implementation says why it cannot run (or None when it can). With ``backend="auto"`` the first
that can run wins, in each op's order of preference; a named backend is a demand: where an op has
no such implementation the next best runs, and where one exists but cannot run it is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from infopt.errors import BackendError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpTarget:
    """What an implementation must run on.

    Attributes:
        device: Where the tensors are.
        dtype: Compute type.
        backend: What was asked for: ``auto`` or the name of a backend.
        head_dim: Width of a head, where it is known.
        block_size: Tokens per page, where it is known.
        kv_cache_dtype: How old rows of the KV cache are kept; ``auto`` is like new ones.
    """

    device: torch.device
    dtype: torch.dtype
    backend: str = "auto"
    head_dim: int | None = None
    block_size: int | None = None
    kv_cache_dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to run an op.

    Attributes:
        backend: ``reference``, ``onednn``, ``cpu``, ``triton`` or ``flash-attn``.
        load: Imports what is needed and returns the callable.
        why_not: Returns the reason it cannot run on a target, or None.
    """

    backend: str
    load: Callable[[], Callable[..., Any]]
    why_not: Callable[[OpTarget], str | None] = lambda _: None


@dataclass(frozen=True, slots=True)
class OpChoice:
    """Which backend an op got, and why not a faster one."""

    backend: str
    reason: str


@dataclass(frozen=True, slots=True)
class OpSet:
    """The resolved ops of one model; see the module of each op for its signature."""

    linear: Callable[..., Any]
    add_rms_norm: Callable[..., Any]
    gated_activation: Callable[..., Any]
    rotary_and_write: Callable[..., Any]
    attention: Callable[..., Any]
    quantize_pages: Callable[..., Any]
    layer_stack: Callable[..., Any]
    draw_tokens: Callable[..., Any]
    route: Callable[..., Any]
    experts: Callable[..., Any]
    add_shared: Callable[..., Any]
    choices: dict[str, OpChoice]

    def describe(self) -> dict[str, dict[str, str]]:
        """Return backend and reason per op, for records and ``infopt doctor``."""
        return {
            op: {"backend": choice.backend, "reason": choice.reason}
            for op, choice in self.choices.items()
        }


def implementations() -> dict[str, list[Implementation]]:
    """Return all known implementations per op, fastest first."""
    from infopt.ops import (
        activation,
        attention,
        experts,
        kv_quantization,
        layer_stack,
        linear,
        rms_norm,
        rotary,
        router,
        sampling,
        shared_expert,
    )

    return {
        "linear": linear.IMPLEMENTATIONS,
        "add_rms_norm": rms_norm.IMPLEMENTATIONS,
        "gated_activation": activation.IMPLEMENTATIONS,
        "rotary_and_write": rotary.IMPLEMENTATIONS,
        "attention": attention.IMPLEMENTATIONS,
        "quantize_pages": kv_quantization.IMPLEMENTATIONS,
        "layer_stack": layer_stack.IMPLEMENTATIONS,
        "draw_tokens": sampling.IMPLEMENTATIONS,
        "route": router.IMPLEMENTATIONS,
        "experts": experts.IMPLEMENTATIONS,
        "add_shared": shared_expert.IMPLEMENTATIONS,
    }


def resolve_ops(
    backend: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    head_dim: int | None = None,
    block_size: int | None = None,
    kv_cache_dtype: str = "auto",
) -> OpSet:
    """Pick an implementation for every op.

    Args:
        backend: ``EngineConfig.backend``.
        device: Where the model runs.
        dtype: Compute type.
        head_dim: Width of a head; some kernels have limits.
        block_size: Tokens per page; some kernels have limits.
        kv_cache_dtype: How old rows of the KV cache are kept; some kernels read one form alone.

    Raises:
        BackendError: If a named backend cannot run here; says why.
    """
    target = OpTarget(device, dtype, backend, head_dim, block_size, kv_cache_dtype)
    functions: dict[str, Callable[..., Any]] = {}
    choices: dict[str, OpChoice] = {}
    for op, candidates in implementations().items():
        functions[op], choices[op] = _choose(op, candidates, backend, target)
    if backend not in ("auto", "reference") and not any(
        choice.backend == backend for choice in choices.values()
    ):
        raise BackendError(
            f"backend={backend!r} has no op for {device.type} with {dtype}.",
            field="backend",
            value=backend,
            remedy="Use backend='auto'; `infopt doctor` lists what is available.",
        )
    return OpSet(**functions, choices=choices)


def _choose(
    op: str, candidates: list[Implementation], backend: str, target: OpTarget
) -> tuple[Callable[..., Any], OpChoice]:
    refused: list[str] = []
    for candidate in sorted(candidates, key=lambda c: c.backend != backend):  # the named one first
        if backend == "reference" and candidate.backend != "reference":
            continue
        why_not = candidate.why_not(target)
        if why_not is None:
            reason = "; ".join(refused) if refused else "preferred"
            if refused and backend == "auto":
                logger.info("%s runs on %s: %s", op, candidate.backend, reason)
            return candidate.load(), OpChoice(candidate.backend, reason)
        if candidate.backend == backend:
            raise BackendError(
                f"backend={backend!r} cannot run {op}: {why_not}.",
                field="backend",
                value=backend,
                remedy="Use backend='auto'; `infopt doctor` lists what is available.",
            )
        refused.append(f"no {candidate.backend}: {why_not}")
    raise AssertionError(f"{op} has no reference implementation")
