"""Quantized weights for CUDA, with the constructors of :mod:`infopt.ops.cpu.quantized`.

Only the weights are quantized, except in :class:`DynamicInt8Linear` (W8A8). Products of float32 are
batch invariant.
"""

from __future__ import annotations

import torch

from infopt.kernels.triton_ops.common import refuse
from infopt.kernels.triton_ops.linear_fp8 import fp8_linear
from infopt.kernels.triton_ops.linear_int4 import int4_linear, pack_int4
from infopt.kernels.triton_ops.linear_int8 import int8_linear
from infopt.kernels.triton_ops.linear_w8a8 import w8a8_linear


class _ScaledLinear:
    """``y = x (scale * weight)^T + b`` with one scale per output."""

    _multiply = staticmethod(int8_linear)

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._scale, self._bias = weight.contiguous(), scale.contiguous(), bias
        self.num_bytes = weight.nbytes + scale.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x W^T + b`` for ``x`` of shape ``(num_rows, in_features)``."""
        return self._multiply(x, self._weight, self._scale, self._bias)


class Int8Linear(_ScaledLinear):
    """int8 weights; only the weights are quantized.

    Args:
        weight: int8 ``(out_features, in_features)``.
        scale: float32 or float16 ``(out_features,)``.
        bias: ``(out_features,)`` or None.
    """


class DynamicInt8Linear(_ScaledLinear):
    """int8 weights and int8 activations, quantized per row at run time (W8A8).

    Args: as :class:`Int8Linear`.
    """

    _multiply = staticmethod(w8a8_linear)


class Float8Linear(_ScaledLinear):
    """Weights in float8 (e4m3); only the weights are quantized.

    Args:
        weight: float8_e4m3fn ``(out_features, in_features)``.
        scale: float32 or float16 ``(out_features,)``.
        bias: ``(out_features,)`` or None.

    Raises:
        KernelArgumentError: If a weight is NaN.
    """

    _multiply = staticmethod(fp8_linear)

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        """Keep the weight as it is."""
        if bool(weight.float().isnan().any()):
            refuse("weight", float("nan"), "holds NaN")
        super().__init__(weight, scale, bias)


class CodeLinear:
    """4-bit weights ``scale[o, g] * codes[o, i] + offset[o, g]``, g = i // group_size.

    Args:
        codes: uint8 ``(out_features, in_features)``, below 16.
        scale: float16 or float32 ``(out_features, num_groups)``.
        offset: Same shape and type.
        bias: ``(out_features,)`` or None.
        group_size: 32, 64, 128 or 256.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        offset: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        group_size: int,
    ) -> None:
        """Pack codes and scales."""
        self.out_features, self.in_features = codes.shape
        self._packed = pack_int4(codes, group_size)
        self._scale, self._offset = scale.t().contiguous(), offset.t().contiguous()
        self._bias = bias
        parts = (self._packed, self._scale, self._offset, *(() if bias is None else (bias,)))
        self.num_bytes = sum(part.nbytes for part in parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x W^T + b`` for ``x`` of shape ``(num_rows, in_features)``."""
        return int4_linear(x, self._packed, self._scale, self._offset, self._bias)


class Int4Linear(CodeLinear):
    """4-bit weights in groups: ``scale * (code - zero)``.

    Args:
        codes: uint8 ``(out_features, in_features)``, below 16.
        scale: ``(out_features, num_groups)``.
        zero: Same shape, or None for 8 (symmetric).
        bias: ``(out_features,)`` or None.
        group_size: 32, 64, 128 or 256.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        zero: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *,
        group_size: int,
    ) -> None:
        """Turn zero points into offsets and pack."""
        wide = scale.float()
        offset = -wide * (8.0 if zero is None else zero.float())
        super().__init__(codes, wide, offset, bias, group_size=group_size)


class Q41Linear(CodeLinear):
    """The q4_1 blocks of GGUF as they are stored: ``d * code + m`` for each 32 inputs.

    Args:
        codes: uint8 ``(out_features, in_features)``, below 16.
        scale: float16 ``(out_features, in_features / 32)``, the d of each block.
        minimum: Same shape, the m of each block.
        bias: ``(out_features,)`` or None.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        minimum: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        """Pack the blocks."""
        super().__init__(codes, scale, minimum, bias, group_size=32)
