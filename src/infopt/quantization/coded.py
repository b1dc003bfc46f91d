"""Quantized weights as data: codes, what they stand for, and how activations are treated.

    integer codes    w = scale[o, g] * (code[o, i] - zero[o, g]),   g = i // group_size
    float8 codes     w = scale[o, 0] * float8[o, i]

This is what every scheme makes, what a checkpoint stores, and what the products are packed from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from infopt.errors import CheckpointError, WeightFormatError

ActivationKind = Literal["float", "dynamic", "static"]
NumberType = Literal["int", "float"]

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = 448.0


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the weights of a layer are coded.

    Attributes:
        bits: 2 to 8 for integers, 8 for floats (e4m3).
        group_size: Inputs that share a scale; None: one scale per output.
        symmetric: The zero point is the middle of the codes, ``2 ** (bits - 1)``, and not stored.
        number: ``int`` or ``float``.
    """

    bits: int
    group_size: int | None = None
    symmetric: bool = True
    number: NumberType = "int"

    @property
    def num_codes(self) -> int:
        """Codes lie in ``[0, num_codes)``."""
        return 1 << self.bits

    @property
    def middle(self) -> int:
        """Zero point of symmetric codes."""
        return 1 << (self.bits - 1)

    def num_groups(self, in_features: int) -> int:
        """Return the scales per output."""
        return 1 if self.group_size is None else in_features // self.group_size

    def check(self, in_features: int, layer: str) -> None:
        """Refuse a layer that groups do not divide.

        Raises:
            WeightFormatError: Names the layer and the sizes that fit.
        """
        if self.group_size is None or in_features % self.group_size == 0:
            return
        fitting = [size for size in (32, 64, 96, 128, 192, 256) if in_features % size == 0]
        raise WeightFormatError(
            f"{layer} has {in_features} inputs, which groups of {self.group_size} do not divide.",
            field="group_size",
            value=self.group_size,
            remedy=f"Sizes that fit: {', '.join(map(str, fitting))}, or one scale per output "
            "('channel').",
        )

    def effective_bits(self, in_features: int, scale_bits: int = 16) -> float:
        """Return bits per weight with scales and zero points: ``b + (scale + zero bits) / g``."""
        group = self.group_size or in_features
        zero_bits = 0 if self.symmetric else self.bits
        return self.bits + (scale_bits + zero_bits) / group

    def describe(self) -> str:
        """Return a short name such as ``int4-g64`` or ``fp8``."""
        if self.number == "float":
            return f"fp{self.bits}"
        group = "" if self.group_size is None else f"-g{self.group_size}"
        return f"int{self.bits}{group}{'' if self.symmetric else '-asym'}"


@dataclass(frozen=True, slots=True)
class ActivationFormat:
    """What happens to the input of a product.

    Attributes:
        kind: ``float`` leaves it alone, ``dynamic`` quantizes each row by its own largest value,
            ``static`` by the scale that calibration found for the tensor.
        bits: 8.
        number: ``int`` or ``float`` (e4m3).
        scale: Step of the codes for ``static``.
    """

    kind: ActivationKind = "float"
    bits: int = 8
    number: NumberType = "int"
    scale: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest code."""
        if self.number == "float":
            return -FLOAT8_MAX, FLOAT8_MAX
        return -(2.0 ** (self.bits - 1)), 2.0 ** (self.bits - 1) - 1

    @property
    def steps_to_largest(self) -> float:
        """Steps between zero and the largest input: in integers half a step too far, and clamped.

        That is the convention of the compressed-tensors format.
        """
        low, high = self.bounds
        return (high - low) / 2


FLOAT_INPUT = ActivationFormat()


@dataclass(slots=True)
class CodedWeight:
    """The weight of one linear layer.

    Attributes:
        format: How it is coded.
        codes: ``(out_features, in_features)``: uint8 below ``2 ** bits``, or float8_e4m3fn.
        scale: ``(out_features, num_groups)``, float16 or float32.
        zero: uint8 ``(out_features, num_groups)``; None where symmetric.
        activation: What happens to the input.
        group_index: int32 ``(in_features,)``, group of each input where checkpoints of others sort
            their inputs (act-order); None: ``i // group_size``.
    """

    format: WeightFormat
    codes: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None = None
    activation: ActivationFormat = FLOAT_INPUT
    group_index: torch.Tensor | None = None

    @property
    def out_features(self) -> int:
        """Rows."""
        return self.codes.shape[0]

    @property
    def in_features(self) -> int:
        """Columns."""
        return self.codes.shape[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of codes, scales and zero points: codes in their bits, scales in 16 if those do."""
        packed = self.codes.numel() * self.format.bits // 8
        zeros = 0 if self.zero is None else self.zero.numel() * self.format.bits // 8
        return packed + zeros + self.scale.numel() * (2 if _fits_16_bits(self.scale) else 4)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the weight that the codes stand for, computed in float32 and rounded once."""
        index = self._groups()
        values = self.codes.float()
        scale = self.scale.float()[:, index]
        if self.format.number == "int":
            middle = float(self.format.middle)
            values = values - (middle if self.zero is None else self.zero.float()[:, index])
        return (values * scale).to(dtype)

    def check(self, layer: str) -> None:
        """Refuse tensors that do not belong together.

        Raises:
            CheckpointError: Names the layer and the tensor.
        """
        out, num_in = self.codes.shape
        groups = (out, self.format.num_groups(num_in))
        for name, tensor in (("scale", self.scale), ("zero point", self.zero)):
            if tensor is not None and tuple(tensor.shape) != groups:
                raise CheckpointError(
                    f"{layer}: the {name} has shape {tuple(tensor.shape)}, its codes demand "
                    f"{groups}.",
                    field=layer,
                    value=tuple(tensor.shape),
                )
        if not bool(self.scale.isfinite().all()):
            raise CheckpointError(f"{layer}: a scale is not finite.", field=layer)

    def _groups(self) -> torch.Tensor:
        if self.group_index is not None:
            return self.group_index.long()
        size = self.format.group_size or self.in_features
        return torch.arange(self.in_features, device=self.codes.device) // size


def check_finite(weight: torch.Tensor, layer: str) -> None:
    """Refuse a weight with NaN or infinity, which would be coded as if it were a number.

    Raises:
        CheckpointError: Names the layer and how many there are.
    """
    bad = int((~weight.isfinite()).sum())
    if bad:
        raise CheckpointError(
            f"{layer} holds {bad} values that are NaN or infinite.",
            field=layer,
            value=bad,
            remedy="The checkpoint is damaged, or was trained past the range of its type.",
        )


def _fits_16_bits(scale: torch.Tensor) -> bool:
    """Tell whether scales are numbers of float16 or bfloat16."""
    wide = scale.float()
    return any(torch.equal(wide.to(t).float(), wide) for t in (torch.float16, torch.bfloat16))
