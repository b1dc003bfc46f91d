"""What all launchers share: checks before a launch, block sizes, and the interpreter.

Launchers refuse wrong arguments by :class:`KernelArgumentError` before anything runs: a kernel that
reads beyond a tensor gives wrong numbers, or takes the whole process down.

Triton decides when a kernel is *defined* whether it will be interpreted (``TRITON_INTERPRET=1``)
or compiled. The interpreter computes with numpy, on tensors of any device, and knows bfloat16 as
loads, stores and conversions alone. So kernels convert to float32 right after a load, and products
take the type of their operands from :func:`dot_type`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from infopt.errors import InfoptError

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types that activations, keys and values may have."""

MIN_CAPABILITY = (8, 0)
"""Oldest GPU the kernels are compiled and checked for (Ampere)."""

_TRITON_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class KernelArgumentError(InfoptError, ValueError):
    """A tensor given to a kernel has the wrong shape, type, layout or device."""


@triton.jit
def _probe():
    pass


def is_interpreted() -> bool:
    """Return whether kernels defined in this process run in Triton's interpreter."""
    return not isinstance(_probe, JITFunction)


INTERPRETED = tl.constexpr(is_interpreted())


@triton.jit
def round_to(values, dtype: tl.constexpr):
    """Convert float32 values, to the nearest and ties to even as the hardware does.

    The interpreter would cut the lower half of a float32 off to make a bfloat16.
    """
    if INTERPRETED and dtype == tl.bfloat16:
        bits = values.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        values = bits.to(tl.float32, bitcast=True)
    return values.to(dtype)


@functools.cache
def why_not_device(device: torch.device) -> str | None:
    """Return why kernels cannot run on a device, or None."""
    if is_interpreted():
        return None
    if device.type != "cuda":
        return "needs a CUDA device"
    if torch.version.hip is not None:
        return "compiled and tested for NVIDIA GPUs alone"
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        return f"needs compute capability 8.0 or more, this GPU has {capability[0]}.{capability[1]}"
    return None


def check_device(tensor: torch.Tensor) -> None:
    """Refuse a tensor that kernels cannot reach.

    Raises:
        KernelArgumentError: Names the device.
    """
    reason = why_not_device(tensor.device)
    if reason is None and tensor.device.type == "cuda" and not is_interpreted():
        current = torch.cuda.current_device()  # Triton launches there, wherever the tensors are
        if tensor.device.index not in (None, current):
            reason = f"the current device is cuda:{current}"
    if reason is not None:
        raise KernelArgumentError(
            f"the kernel cannot run on {tensor.device}: {reason}.",
            field="device",
            value=str(tensor.device),
            remedy="Move the tensors to a CUDA device, or set TRITON_INTERPRET=1 for tests.",
        )


def check(
    name: str,
    tensor: torch.Tensor,
    shape: Sequence[int | None],
    dtypes: torch.dtype | Sequence[torch.dtype],
    like: torch.Tensor | None = None,
) -> None:
    """Refuse a tensor of another shape, type or device.

    Args:
        name: Of the argument, for the message.
        tensor: What was given.
        shape: What is expected; None is any length.
        dtypes: Accepted types.
        like: Tensor whose device it must share (None: any device that kernels run on).

    Raises:
        KernelArgumentError: Names the argument, its value and what was expected.
    """
    accepted = (dtypes,) if isinstance(dtypes, torch.dtype) else tuple(dtypes)
    given = tuple(tensor.shape)
    if len(given) != len(shape) or any(
        want is not None and want != have for want, have in zip(shape, given, strict=True)
    ):
        refuse(name, given, f"must have shape {_show_shape(shape)}, got {given}")
    if tensor.dtype not in accepted:
        names = " or ".join(str(d).removeprefix("torch.") for d in accepted)
        refuse(name, tensor.dtype, f"must be {names}, got {tensor.dtype}")
    if like is None:
        check_device(tensor)
    elif tensor.device != like.device:
        refuse(name, tensor.device, f"must be on {like.device}, got {tensor.device}")


def check_rows_contiguous(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor whose last dimension is not contiguous (rows may be strided)."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1 and tensor.numel() > 0:
        refuse(
            name, tensor.stride(), f"needs contiguous rows, got strides {tuple(tensor.stride())}"
        )


def check_contiguous(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that is not contiguous."""
    if not tensor.is_contiguous():
        refuse(name, tensor.stride(), f"must be contiguous, got strides {tuple(tensor.stride())}")


def refuse(name: str, value: object, what: str, remedy: str | None = None) -> None:
    """Raise a KernelArgumentError that begins with the argument's name."""
    raise KernelArgumentError(f"{name} {what}.", field=name, value=value, remedy=remedy)


def power_of_two(size: int, minimum: int = 1) -> int:
    """Return the smallest power of two that is at least ``size`` and ``minimum``."""
    return max(triton.next_power_of_2(max(size, 1)), minimum)


def dot_type(dtype: torch.dtype) -> Any:
    """Return the Triton type for operands of a product of tensors of a torch type.

    The interpreter has no bfloat16 arithmetic; there the operands are converted to float32, which
    holds every bfloat16 and changes no product.
    """
    if dtype == torch.bfloat16 and is_interpreted():
        return tl.float32
    return _TRITON_TYPES[dtype]


def triton_type(dtype: torch.dtype) -> Any:
    """Return the Triton type of a torch type."""
    return _TRITON_TYPES[dtype]


def _show_shape(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
