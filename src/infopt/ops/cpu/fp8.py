"""Products with float8 weights in C++ (e4m3, finite; arXiv 2209.05433), one scale per output.

    y = (x W^T) * scale + b

A weight takes one byte in memory and becomes a float inside the kernel, which is exact. Activations
stay what they are, or are rounded to float8 first, as processors with float8 products do: with a
scale per row, or one that calibration found for all. In float32 a row's bits depend on that row
alone.
"""

from __future__ import annotations

import torch

from infopt.errors import WeightFormatError
from infopt.ops.cpu.build import extension

LARGEST = 448.0
"""The largest value of e4m3."""


class Fp8Linear:
    """``y = x W^T * scale + b`` with ``W`` in float8.

    Args:
        codes: float8_e4m3fn, or its bytes as uint8, ``(out_features, in_features)``.
        scale: float32 ``(out_features,)``.
        bias: ``(out_features,)`` in the type of the activations, or None.
        activation_bits: 16 keeps activations in their type; 8 rounds them to float8, ties to even:
            ``x`` becomes ``s * float8(clamp(x / s, -448, 448))``.
        activation_scale: The ``s`` of all activations (8 bits only). None takes a row's largest
            absolute value over 448.

    Raises:
        WeightFormatError: If a weight is NaN.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        activation_bits: int = 16,
        activation_scale: float | None = None,
    ) -> None:
        """Pack the bytes in the order in which the kernel reads them."""
        kernels = extension()
        raw = codes.view(torch.uint8) if codes.dtype == torch.float8_e4m3fn else codes
        _check_numbers(raw)
        self.out_features, self.in_features = raw.shape
        self.activation_bits, self.activation_scale = activation_bits, activation_scale
        self._packed = kernels.pack_fp8(raw.contiguous())
        self._scale = scale.float().contiguous()
        self._bias = None if bias is None else bias.detach().contiguous()
        self._multiply = kernels.linear_fp8
        shape = (self.out_features, self.in_features)
        self._format = (*shape, activation_bits, activation_scale)
        self.packed_product = kernels.PackedProduct.fp8(
            self._packed, self._scale, self._bias, *self._format
        )
        self.num_bytes = self._packed.nbytes + self._scale.nbytes
        self.num_bytes += 0 if bias is None else bias.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x W^T * scale + b`` for ``x`` of shape ``(num_rows, in_features)``."""
        return self._multiply(x, self._packed, self._scale, self._bias, *self._format)


def _check_numbers(raw: torch.Tensor) -> None:
    wrong = ((raw & 0x7F) == 0x7F).nonzero()
    if wrong.numel():
        at = tuple(wrong[0].tolist())
        raise WeightFormatError(
            f"{len(wrong)} float8 weights are NaN, the first at {at}.",
            field="weight",
            value=int(raw[at]),
            remedy="Quantize again with values clamped to -448 .. 448 before they are rounded.",
        )
