"""GPTQ (arXiv 2210.17323): rounds column by column and lets later columns repair the error.

With H = 2 E[x x^T] + lambda I and U the upper Cholesky factor of its inverse, column j is rounded
and

    w[:, k] -= (w[:, j] - q[:, j]) / U[j, j] * U[j, k]        for k > j.

With H a multiple of the identity nothing is repaired and this is round to nearest. It minimises the
error of the calibration inputs greedily, which is usual and no theorem: the caller compares.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from infopt.quantization.coded import CodedWeight, WeightFormat
from infopt.quantization.rtn import check_weight, is_no_worse, make_grid, rtn
from infopt.quantization.statistics import InputStatistics

logger = logging.getLogger(__name__)

DAMPING = 0.01
"""lambda as a share of the mean diagonal of H."""

_MAX_DAMPING = 10.0
_BLOCK = 128  # columns whose repairs are gathered into one product


@dataclass(frozen=True, slots=True)
class GPTQResult:
    """A quantized weight and how it came about.

    Attributes:
        coded: The weight.
        damping: The damping used; more than asked for where H was singular.
        fell_back: ``rtn`` where round to nearest had the lower error or H could not be inverted.
    """

    coded: CodedWeight
    damping: float
    fell_back: str | None = None


def gptq(
    weight: torch.Tensor,
    fmt: WeightFormat,
    statistics: InputStatistics,
    *,
    act_order: bool = True,
    damping: float = DAMPING,
    scale_dtype: torch.dtype = torch.float32,
    layer: str = "weight",
) -> GPTQResult:
    """Quantize a weight for the inputs that calibration saw.

    Args:
        weight: ``(out_features, in_features)``.
        fmt: Integer format.
        statistics: Of the layer's inputs.
        act_order: Round columns with large inputs first. Groups stay where they are (their scales
            are those of the unchanged weight), so nothing has to be reordered when it runs.
        damping: Share of the mean diagonal added to H; raised tenfold until H can be inverted.
        scale_dtype: Type of the scales.
        layer: Its name, for messages.

    Returns:
        The weight with the lower calibration error of GPTQ and round to nearest.

    Raises:
        ConfigError: If groups do not divide the inputs.
        CheckpointError: If a value is NaN or infinite.
    """
    weight = check_weight(weight, fmt, layer)
    nearest = rtn(weight, fmt, scale_dtype=scale_dtype, layer=layer)
    moment = statistics.second_moment
    factor, used = _inverse_factor(moment, act_order, damping)
    if factor is None:
        logger.warning("%s: calibration inputs span too little (damping %g); rtn", layer, used)
        return GPTQResult(nearest, used, "rtn")
    if used > damping:
        logger.warning("%s: calibration inputs span too little; damping raised to %g", layer, used)
    order = _order(moment, act_order)
    scale, zero = make_grid(weight, fmt, scale_dtype)
    codes = _round_columns(weight[:, order], order, scale, zero, fmt, factor)
    coded = CodedWeight(fmt, codes[:, order.argsort()].contiguous(), scale, zero)
    if is_no_worse(weight, coded, nearest, moment):
        return GPTQResult(coded, used)
    return GPTQResult(nearest, used, "rtn")


def _order(moment: torch.Tensor, act_order: bool) -> torch.Tensor:
    """Return the order of the columns: largest inputs first, or as they are."""
    if not act_order:
        return torch.arange(moment.shape[0])
    return moment.diagonal().argsort(descending=True, stable=True)


def _inverse_factor(
    moment: torch.Tensor, act_order: bool, damping: float
) -> tuple[torch.Tensor | None, float]:
    """Return U with U^T U = H^-1 (upper, float32), columns in order, and the damping it took.

    A channel without input cannot be repaired and repairs nothing: its row and column of H are
    those of the identity.
    """
    order = _order(moment, act_order)
    hessian = moment[order][:, order].double()
    dead = hessian.diagonal() == 0
    hessian[dead, :] = 0
    hessian[:, dead] = 0
    mean = float(hessian.diagonal().mean())
    hessian[dead, dead] = mean if mean > 0 else 1.0
    while damping <= _MAX_DAMPING:
        damped = hessian + damping * mean * torch.eye(hessian.shape[0], dtype=hessian.dtype)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed and bool(upper.isfinite().all()):
                return upper.float(), damping
        damping *= 10
    return None, damping / 10


def _round_columns(
    weight: torch.Tensor,
    order: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    fmt: WeightFormat,
    factor: torch.Tensor,
) -> torch.Tensor:
    """Return the codes of all columns, in their order."""
    work = weight.t().contiguous()  # a column of the weight is a row here: contiguous
    codes = torch.empty(work.shape, dtype=torch.uint8)
    group_of = order // (fmt.group_size or order.numel())
    scales = scale.float().t()[group_of].contiguous()
    zeros = torch.full_like(scales, fmt.middle) if zero is None else zero.float().t()[group_of]
    for start in range(0, len(work), _BLOCK):
        end = min(start + _BLOCK, len(work))
        errors = torch.empty(end - start, work.shape[1])
        for j in range(start, end):
            steps = (work[j] / scales[j]).round_() + zeros[j]
            code = steps.clamp_(0, fmt.num_codes - 1)
            codes[j] = code
            error = (work[j] - (code - zeros[j]) * scales[j]) / factor[j, j]
            errors[j - start] = error
            work[j:end].addr_(factor[j, j:end], error, alpha=-1.0)
        work[end:].addmm_(factor[start:end, end:].t(), errors, alpha=-1.0)
    return codes.t()
