"""Cosines and sines of rotary embeddings, with the length-scaling rules of the families.

Frequencies follow Hugging Face's definitions: linear interpolation (arXiv 2306.15595), Llama 3's
wavelength-dependent scaling, YaRN (arXiv 2309.00071), and explicit divisors from GGUF files.
"""

from __future__ import annotations

import math

import torch

from infopt.errors import UnsupportedModelError
from infopt.models.config import RopeConfig


def rope_frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Return angular frequencies and the factor on cosines and sines.

    Args:
        rope: Base and scaling rule.
        head_dim: Width of a head.

    Returns:
        float32 ``(head_dim / 2,)`` and the attention factor (1 but for YaRN).

    Raises:
        UnsupportedModelError: For a scaling rule that is not computed here.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    inverse = 1.0 / (rope.theta**exponents)
    factor = 1.0
    scaling = dict(rope.scaling or {})
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        inverse = inverse / scaling["factor"]
    elif kind == "llama3":
        inverse = _llama3(inverse, scaling)
    elif kind == "yarn":
        inverse, factor = _yarn(inverse, scaling, rope.theta, head_dim)
    elif kind != "default":
        raise UnsupportedModelError(
            f"rope type {kind!r} is not supported.",
            field="rope_type",
            value=kind,
            remedy="Supported: default, linear, llama3, yarn.",
        )
    if rope.factors is not None:
        inverse = inverse / torch.tensor(rope.factors, dtype=torch.float32)
    return inverse, factor


def rope_table(
    rope: RopeConfig, head_dim: int, num_positions: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines of positions ``0 .. num_positions - 1``.

    Returns:
        Two tensors ``(num_positions, head_dim / 2)`` in ``dtype``, computed in float32.
    """
    inverse, factor = rope_frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def turn_table(rope: RopeConfig, head_dim: int, num_positions: int) -> torch.Tensor:
    """Return what turns a rotated key back by 0, 1, 2, ... positions.

    Returns:
        float32 ``(2, num_positions, head_dim / 2)``: cosines, and sines of the opposite angle.
    """
    inverse, _ = rope_frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse)
    return torch.stack((angles.cos(), -angles.sin()))


def _llama3(inverse: torch.Tensor, scaling: dict) -> torch.Tensor:
    """Long wavelengths are divided by the factor, short ones kept, a ramp between."""
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelength = 2 * math.pi / inverse
    ramp = (original / wavelength - low) / (high - low)
    smooth = (1 - ramp) * inverse / factor + ramp * inverse
    scaled = torch.where(wavelength > original / low, inverse / factor, smooth)
    return torch.where(wavelength < original / high, inverse, scaled)


def _yarn(
    inverse: torch.Tensor, scaling: dict, theta: float, head_dim: int
) -> tuple[torch.Tensor, float]:
    """Blend interpolated and original frequencies by how often they turn in training."""
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]

    def dimension_of(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension_of(scaling.get("beta_fast") or 32)
    high = dimension_of(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a division by zero
    ramp = ((torch.arange(head_dim // 2).float() - low) / (high - low)).clamp(0, 1)
    blended = inverse / factor * ramp + inverse * (1 - ramp)
    attention = scaling.get("attention_factor")
    return blended, attention if attention is not None else _yarn_attention(scaling, factor)


def _yarn_attention(scaling: dict, factor: float) -> float:
    def scale(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    mscale, mscale_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and mscale_all:
        return scale(mscale) / scale(mscale_all)
    return scale(1.0)
