"""Round to nearest: the grid that a group of weights gets, and the codes on it.

    symmetric    s = max|w| / ((2^b - 1) / 2)    code = clamp(round(w / s)) + 2^(b-1)
    asymmetric   s = (max - min) / (2^b - 1)     code = clamp(round(w / s + z)), z = round(-min / s)
    float8       s = max|w| / 448                code = e4m3(clamp(w / s))

with zero always inside [min, max]. These are the conventions of the compressed-tensors format, so
that codes and scales equal those of other tools. Inside the range |w - w_q| <= s / 2.
"""

from __future__ import annotations

import torch

from infopt.quantization.coded import FLOAT8, FLOAT8_MAX, CodedWeight, WeightFormat, check_finite
from infopt.quantization.statistics import output_error

_SHRINKS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
_SMALLEST_HALF = 2.0**-14
"""Below this float16 loses digits, so such scales are kept in float32."""


def rtn(
    weight: torch.Tensor,
    fmt: WeightFormat,
    *,
    scale_dtype: torch.dtype = torch.float32,
    layer: str = "weight",
) -> CodedWeight:
    """Quantize a weight, each value to the nearest code.

    Args:
        weight: ``(out_features, in_features)``.
        fmt: How to code it.
        scale_dtype: float32, or float16: codes are then chosen for the rounded scales.
        layer: Its name, for messages.

    Raises:
        ConfigError: If groups do not divide the inputs.
        CheckpointError: If a value is NaN or infinite.
    """
    weight = check_weight(weight, fmt, layer)
    scale, zero = make_grid(weight, fmt, scale_dtype)
    return CodedWeight(fmt, to_codes(weight, scale, zero, fmt), scale, zero)


def clipped(
    weight: torch.Tensor,
    fmt: WeightFormat,
    importance: torch.Tensor,
    *,
    scale_dtype: torch.dtype = torch.float32,
    layer: str = "weight",
) -> CodedWeight:
    """Quantize a weight on grids that may leave out the largest values of a group.

    Clipping a few large weights makes the steps of all others smaller. For each group the share of
    the range with the least weighted squared error is taken (AWQ's second step).

    Args:
        weight: ``(out_features, in_features)``.
        fmt: How to code it.
        importance: Mean square of each input, ``(in_features,)``.
        scale_dtype: Type of the scales.
        layer: Its name, for messages.

    Raises:
        ConfigError: If groups do not divide the inputs.
        CheckpointError: If a value is NaN or infinite.
    """
    weight = check_weight(weight, fmt, layer)
    best = rtn(weight, fmt, scale_dtype=scale_dtype, layer=layer)
    least = _weighted_error(weight, best, importance)
    for shrink in _SHRINKS:
        scale, zero = make_grid(weight, fmt, best.scale.dtype, shrink)
        tried = CodedWeight(fmt, to_codes(weight, scale, zero, fmt), scale, zero)
        error = _weighted_error(weight, tried, importance)
        is_better = error < least
        least = torch.where(is_better, error, least)
        best.scale = torch.where(is_better, tried.scale, best.scale)
        if best.zero is not None and tried.zero is not None:
            best.zero = torch.where(is_better, tried.zero, best.zero)
        by_input = is_better.repeat_interleave(weight.shape[1] // is_better.shape[1], dim=1)
        best.codes = torch.where(by_input, tried.codes, best.codes)
    return best


def _weighted_error(
    weight: torch.Tensor, coded: CodedWeight, importance: torch.Tensor
) -> torch.Tensor:
    """Return the error of each group, ``(out_features, num_groups)``."""
    error = (weight - coded.dequantize()).square_().mul_(importance)
    return in_groups(error, coded.format).sum(dim=-1)


def check_weight(weight: torch.Tensor, fmt: WeightFormat, layer: str) -> torch.Tensor:
    """Return the weight in float32, checked against the format.

    Raises:
        ConfigError: If groups do not divide the inputs.
        CheckpointError: If a value is NaN or infinite.
    """
    fmt.check(weight.shape[1], layer)
    check_finite(weight, layer)
    return weight.float()


def make_grid(
    weight: torch.Tensor,
    fmt: WeightFormat,
    scale_dtype: torch.dtype = torch.float32,
    shrink: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return scale and zero point per output and group.

    Args:
        weight: float32 ``(out_features, in_features)``.
        fmt: How it will be coded.
        scale_dtype: Type of the scales.
        shrink: Share of the range that the codes span; what lies outside is clipped.

    Returns:
        ``(out_features, num_groups)`` each; the zero point (uint8) is None where symmetric.
    """
    groups = in_groups(weight, fmt)
    low = groups.amin(dim=-1).clamp_max(0.0) * shrink
    high = groups.amax(dim=-1).clamp_min(0.0) * shrink
    largest = torch.maximum(-low, high)
    if fmt.number == "float":
        return _fit(largest / FLOAT8_MAX, scale_dtype), None
    steps = fmt.num_codes - 1
    if fmt.symmetric:
        return _fit(largest / (steps / 2), scale_dtype), None
    scale = _fit((high - low) / steps, scale_dtype)
    zero = (-(low / scale.float())).round().clamp(0, steps)
    return scale, zero.to(torch.uint8)


def to_codes(
    weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, fmt: WeightFormat
) -> torch.Tensor:
    """Return the nearest codes ``(out_features, in_features)``: uint8, or float8."""
    steps = in_groups(weight, fmt) / scale.float().unsqueeze(-1)
    if fmt.number == "float":
        # Clamped first: beyond its range a conversion may give NaN instead of the largest value.
        codes = steps.clamp(-FLOAT8_MAX, FLOAT8_MAX).to(FLOAT8)
        return codes.view(weight.shape)
    # Halves round to even: around zero where the grid is symmetric, around code 0 otherwise.
    is_symmetric = zero is None
    shift = float(fmt.middle) if is_symmetric else zero.float().unsqueeze(-1)
    codes = steps.round() + shift if is_symmetric else (steps + shift).round()
    return codes.clamp(0, fmt.num_codes - 1).to(torch.uint8).view(weight.shape)


def is_no_worse(
    weight: torch.Tensor, found: CodedWeight, nearest: CodedWeight, second_moment: torch.Tensor
) -> bool:
    """Whether codes have at most the output error of round to nearest on the calibration text.

    Args:
        weight: ``(out_features, in_features)``.
        found: The codes that a method chose for it.
        nearest: Those of `rtn`.
        second_moment: H of the inputs, ``(in_features, in_features)``.
    """
    errors = [output_error(weight - c.dequantize(), second_moment) for c in (found, nearest)]
    return errors[0] <= errors[1]


def in_groups(weight: torch.Tensor, fmt: WeightFormat) -> torch.Tensor:
    """Return a view ``(out_features, num_groups, group_size)``."""
    return weight.reshape(weight.shape[0], fmt.num_groups(weight.shape[1]), -1)


def _fit(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round scales to their type, or keep them where it is too narrow; no scale is zero."""
    positive = scale[scale > 0]
    if dtype == torch.float16 and positive.numel() and float(positive.amin()) < _SMALLEST_HALF:
        dtype = torch.float32
    rounded = scale.to(dtype)
    return torch.where(rounded == 0, torch.finfo(dtype).eps, rounded)
