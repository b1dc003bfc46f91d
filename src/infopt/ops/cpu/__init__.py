"""C++ kernels for CPUs, compiled on first use (sources: ``kernels/csrc``).

Each ``load_*`` returns the callable of one op; :func:`why_not` says why they cannot run on a
target. Importing this package compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from infopt.ops.cpu.attention import load_attention, load_quantize_pages
from infopt.ops.cpu.build import extension, why_no_extension
from infopt.ops.cpu.experts import load_experts
from infopt.ops.cpu.layer_stack import load_layer_stack
from infopt.ops.cpu.linear import PackedLinear, why_not_faster
from infopt.ops.cpu.rotary import load_rotary_and_write
from infopt.ops.cpu.router import load_add_shared, load_route
from infopt.ops.cpu.sampling import load_draw_tokens
from infopt.ops.dispatch import OpTarget

__all__ = [
    "load_add_rms_norm",
    "load_add_shared",
    "load_attention",
    "load_draw_tokens",
    "load_experts",
    "load_gated_activation",
    "load_layer_stack",
    "load_linear",
    "load_quantize_pages",
    "load_rotary_and_write",
    "load_route",
    "why_not",
    "why_not_float",
    "why_not_linear",
]


def why_not(target: OpTarget) -> str | None:
    """Return why the kernels cannot run on a target, or None. May compile them."""
    if target.device.type == "cpu" and target.dtype not in (torch.float32, torch.bfloat16):
        return f"{target.dtype} is not float32 or bfloat16"
    return why_not_float(target)


def why_not_float(target: OpTarget) -> str | None:
    """Return why kernels on float32 cannot run beside a model of any type, or None."""
    return why_no_extension() if target.device.type == "cpu" else "a CPU path"


def why_not_linear(target: OpTarget) -> str | None:
    """Return why the matrix products cannot or should not run on a target, or None."""
    return why_not(target) or why_not_faster(target.dtype)


def load_linear() -> type[PackedLinear]:
    """Return the op; see :class:`infopt.ops.linear.Linear` for its contract."""
    return PackedLinear


def load_add_rms_norm() -> Callable[..., Any]:
    """Return the op; see :func:`infopt.ops.rms_norm.add_rms_norm` for its contract."""
    return extension().add_rms_norm


def load_gated_activation() -> Callable[..., Any]:
    """Return the op; see :func:`infopt.ops.activation.gated_activation` for its contract."""
    return extension().gated_activation
