"""What became of a linear layer: bits, distance from the grid, error on the calibration text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from infopt.quantization.coded import CodedWeight
from infopt.quantization.methods import LayerWork, Quantized
from infopt.quantization.statistics import relative_error

GRID_TOLERANCE = 1e-3
"""Share of a step within which a weight lies on the grid of its codes already."""


@dataclass(frozen=True, slots=True)
class LinearReport:
    """What became of one linear layer.

    Attributes:
        name: Canonical name.
        format: ``int4-g64``, ...
        num_weights: Its weights.
        bits: Bits per weight, scales and zero points included.
        grid_error: Largest distance between a weight and its code, in steps. Near 0 the stored
            weights lie on this grid already (they come from a quantized file), and nothing is lost.
        relative_error: Root of output error over output power on the calibration text; None
            without calibration.
        exponent: Of the channel scales; None where nothing was scaled.
        fell_back: Method used instead, if another was better, or if too little text came by.
        damping: Where GPTQ had to raise it.
        tokens: Calibration tokens that came by, for a layer of a routed expert; None for others.
    """

    name: str
    format: str
    num_weights: int
    bits: float
    grid_error: float
    relative_error: float | None = None
    exponent: float | None = None
    fell_back: str | None = None
    damping: float | None = None
    tokens: int | None = None


def report_linear(work: LayerWork, found: Quantized) -> LinearReport:
    """Compare codes with the weight that they stand for.

    Args:
        work: The weight, and statistics of its inputs where there are some.
        found: Its codes.
    """
    coded, seen = found.coded, work.statistics
    num_weights, quantized = coded.codes.numel(), coded.dequantize()
    error = None
    if seen is not None:
        error = relative_error(work.weight, quantized, seen.second_moment)
    return LinearReport(
        name=work.name,
        format=coded.format.describe(),
        num_weights=num_weights,
        bits=8 * coded.num_bytes / num_weights,
        grid_error=grid_error(work.weight - quantized, coded),
        relative_error=error,
        fell_back=found.fell_back,
        damping=found.damping,
    )


def grid_error(difference: torch.Tensor, coded: CodedWeight) -> float:
    """Return the largest distance between a weight and what its code stands for, in steps.

    Args:
        difference: The weight minus the dequantized codes.
        coded: The codes.
    """
    groups = coded.scale.shape[1]
    distance = difference.abs().reshape(len(difference), groups, -1)
    return float((distance.amax(dim=-1) / coded.scale.float()).max())


def effective_bits(reports: Sequence[LinearReport]) -> float:
    """Return bits per weight over all layers."""
    total = sum(r.num_weights for r in reports)
    return sum(r.bits * r.num_weights for r in reports) / total
