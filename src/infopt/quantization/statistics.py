"""What calibration learns of the inputs of a linear layer, and errors measured with it.

The second moment H = E[x x^T] is all that the squared output error of a changed weight needs:

    E |(W - W_q) x|^2 = trace((W - W_q) H (W - W_q)^T)

so inputs need not be kept, whatever their number.
"""

from __future__ import annotations

import torch

from infopt.errors import MeasurementError


class InputStatistics:
    """Moments of the inputs of one layer.

    Args:
        in_features: Width of the input.

    Attributes:
        num_rows: Inputs seen.
        absmax: float32 ``(in_features,)``: largest magnitude per channel.
    """

    def __init__(self, in_features: int) -> None:
        """Start with no input."""
        self.num_rows = 0
        self.absmax = torch.zeros(in_features)
        self._abs_sum = torch.zeros(in_features, dtype=torch.float64)
        self._products = torch.zeros(in_features, in_features)

    def add(self, x: torch.Tensor, layer: str) -> None:
        """Take inputs ``(..., in_features)`` in.

        Raises:
            MeasurementError: If one is NaN or infinite.
        """
        rows = x.reshape(-1, x.shape[-1]).float()
        if not bool(rows.isfinite().all()):
            raise MeasurementError(
                f"Calibration inputs of {layer} are NaN or infinite.",
                field=layer,
                remedy="Check the checkpoint in float32: it may overflow on this text.",
            )
        magnitude = rows.abs()
        self.num_rows += rows.shape[0]
        self.absmax = torch.maximum(self.absmax, magnitude.amax(dim=0))
        self._abs_sum += magnitude.sum(dim=0, dtype=torch.float64)
        self._products.addmm_(rows.t(), rows)

    @property
    def second_moment(self) -> torch.Tensor:
        """H = E[x x^T], float32 ``(in_features, in_features)``."""
        return self._products / max(self.num_rows, 1)

    @property
    def mean_abs(self) -> torch.Tensor:
        """Mean magnitude per channel, float32 ``(in_features,)``."""
        return (self._abs_sum / max(self.num_rows, 1)).float()

    @property
    def largest(self) -> float:
        """Largest magnitude of all."""
        return float(self.absmax.max())

    def divided_by(self, scale: torch.Tensor) -> InputStatistics:
        """Return the statistics of ``x / scale``."""
        out = InputStatistics(scale.numel())
        out.num_rows = self.num_rows
        out.absmax = self.absmax / scale
        out._abs_sum = self._abs_sum / scale.double()
        out._products = self._products / scale.unsqueeze(0) / scale.unsqueeze(1)
        return out


def output_error(difference: torch.Tensor, second_moment: torch.Tensor) -> float:
    """Return the mean squared error of the outputs, summed over them.

    Args:
        difference: ``W - W_q``, ``(out_features, in_features)``.
        second_moment: H of the inputs.
    """
    return float((difference @ second_moment).mul_(difference).sum(dtype=torch.float64))


def relative_error(
    weight: torch.Tensor, quantized: torch.Tensor, second_moment: torch.Tensor
) -> float:
    """Return the root of output error over output power (0 where there is no output)."""
    power = output_error(weight, second_moment)
    error = output_error(weight - quantized, second_moment)
    return (max(error, 0.0) / power) ** 0.5 if power > 0 else 0.0
