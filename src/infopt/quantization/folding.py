"""Moves scales per channel from the readers of an input into what makes it."""

from __future__ import annotations

import torch

from infopt.quantization.block import Block


def fold(
    block: Block, kind: str, scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Multiply the readers of an input by a scale per channel, and divide what makes it.

    Args:
        block: Changed in place.
        kind: Which scaling of `Block.inputs`.
        scale: ``(in_features,)``.
        dtype: Type in which norms are stored. The scale is changed a little, so that a norm divided
            by it is a number of this type: rounding it afterwards would cost more than 8-bit codes.
            Where a router reads the input, too, it becomes a power of two: then the router's
            weights are exact as well, and tokens go where they went.

    Returns:
        The scale used.
    """
    tensors, scaling = block.tensors, block.inputs.scalings[kind]
    maker = scaling.maker
    if scaling.dense:
        scale = scale.log2().round().exp2()
    elif maker.endswith("norm"):
        scale = _representable(tensors[f"{maker}.weight"], scale, dtype, block.config.family)
    for name in [*block.inputs.scaled_readers(kind), *scaling.dense]:
        tensors[f"{name}.weight"] = block.weight(name) * scale
    for part in ("weight", "bias"):
        tensor = tensors.get(f"{maker}.{part}")
        if tensor is not None:
            tensors[f"{maker}.{part}"] = tensor / (scale if tensor.dim() == 1 else scale[:, None])
    return scale


def _representable(
    norm: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, family: str
) -> torch.Tensor:
    """Return a scale near the given one by which a norm divides without rounding."""
    shift = 1.0 if family == "gemma3_text" else 0.0  # this family stores w and multiplies by 1 + w
    rounded = (norm / scale - shift).to(dtype).float() + shift
    exact = norm / rounded
    return torch.where((rounded != 0) & exact.isfinite() & (exact > 0), exact, scale)
