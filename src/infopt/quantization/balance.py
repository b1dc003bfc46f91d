"""Moves magnitude between inputs and weights: AWQ and SmoothQuant.

Channel j of the input is divided by s_j and column j of the weight multiplied by it; in exact
arithmetic nothing changes, but a channel with large inputs gets finer codes (AWQ, arXiv
2306.00978), or inputs become easier to quantize (SmoothQuant, arXiv 2211.10438). The division is
folded into whatever makes the input, a norm or the rows of a linear layer, so it costs nothing.

    AWQ           s = mean|x| ^ a, the a of a grid with the least output error
    SmoothQuant   s = max|x| ^ a / max|w| ^ (1 - a)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from infopt.quantization.statistics import InputStatistics, output_error

logger = logging.getLogger(__name__)

GRID = tuple(i / 20 for i in range(20))
"""Exponents that AWQ tries; 0 is plain rounding."""

SMOOTHING = 0.5
_LEAST = 1e-4


@dataclass(frozen=True, slots=True)
class Balance:
    """How channels were scaled.

    Attributes:
        scale: float32 ``(in_features,)``; ones where nothing is gained.
        exponent: The one chosen.
        error: Output error with it, of all layers that read the input.
        error_plain: Output error of plain rounding.
    """

    scale: torch.Tensor
    exponent: float
    error: float
    error_plain: float

    @property
    def is_plain(self) -> bool:
        """Whether the weights stay as they are."""
        return self.exponent == 0.0


def awq_balance(
    weights: Sequence[torch.Tensor],
    statistics: InputStatistics,
    quantize: Callable[[torch.Tensor], torch.Tensor],
    *,
    layer: str = "weight",
    grid: Sequence[float] = GRID,
) -> Balance:
    """Search the exponent with the least output error.

    Args:
        weights: Of all layers that read this input, ``(out_features, in_features)`` each.
        statistics: Of the input.
        quantize: Weight -> quantized and dequantized weight.
        layer: Name for messages.
        grid: Exponents; 0 is tried first and is what remains if no error is finite.
    """
    moment = statistics.second_moment
    plain = torch.ones(moment.shape[0])
    best = (_error(weights, plain, moment, quantize), 0.0, plain)
    plain_error = best[0]
    for exponent in grid:
        if exponent == 0.0:
            continue
        scale = _normalised(statistics.mean_abs.pow(exponent), statistics.mean_abs > 0)
        error = _error(weights, scale, moment, quantize)
        if math.isfinite(error) and (not math.isfinite(best[0]) or error < best[0]):
            best = (error, exponent, scale)
    if not math.isfinite(best[0]):
        logger.warning("%s: no scaling has a finite error; plain rounding", layer)
    return Balance(best[2], best[1], best[0], plain_error)


def smooth_balance(
    weights: Sequence[torch.Tensor], statistics: InputStatistics, *, alpha: float = SMOOTHING
) -> Balance:
    """Return SmoothQuant's scales.

    Args:
        weights: Of all layers that read this input.
        statistics: Of the input.
        alpha: How much of the difficulty moves to the weights.
    """
    largest_input = statistics.absmax
    largest_weight = torch.stack([w.abs().amax(dim=0) for w in weights]).amax(dim=0)
    alive = (largest_input > 0) & (largest_weight > 0)
    scale = largest_input.clamp_min(_LEAST).pow(alpha)
    scale = scale / largest_weight.clamp_min(_LEAST).pow(1.0 - alpha)
    return Balance(_normalised(scale, alive), alpha, float("nan"), float("nan"))


def _error(
    weights: Sequence[torch.Tensor],
    scale: torch.Tensor,
    moment: torch.Tensor,
    quantize: Callable[[torch.Tensor], torch.Tensor],
) -> float:
    total = 0.0
    for weight in weights:
        quantized = quantize(weight * scale) / scale
        total += output_error(weight - quantized, moment)
    return total


def _normalised(scale: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
    """Centre scales around 1; a channel without input keeps 1."""
    if not bool(alive.any()):
        return torch.ones_like(scale)
    scale = scale.clamp_min(_LEAST)
    living = scale[alive]
    scale = scale / (living.max() * living.min()).sqrt()
    return torch.where(alive & scale.isfinite(), scale, 1.0)
