"""LLM.int8 weights and their products, coded and multiplied by bitsandbytes.

    w[o, i] = absmax[o] * code[o, i] / 127

Weights pass through float16. Rows of the input are coded the same way at run time, except for
outliers, which stay floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from infopt.errors import WeightFormatError
from infopt.quantization.bnb_library import functional, stored
from infopt.quantization.coded import check_finite

_STEPS = 127.0
_FLOAT16_MAX = torch.finfo(torch.float16).max


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """The weight of a layer in LLM.int8.

    Attributes:
        codes: int8 ``(out_features, in_features)``.
        absmax: float32 ``(out_features,)``.
    """

    codes: torch.Tensor
    absmax: torch.Tensor

    @classmethod
    def quantize(cls, weight: torch.Tensor, *, layer: str = "weight") -> Int8Weight:
        """Code a weight.

        Args:
            weight: ``(out_features, in_features)``.
            layer: Its name, for messages.

        Raises:
            DependencyError: Without bitsandbytes.
            CheckpointError: If a value is NaN or infinite.
            WeightFormatError: If a value is beyond float16.
        """
        library = functional()
        check_finite(weight, layer)
        _check_range(weight, layer)
        if not weight.numel():
            absmax = weight.new_zeros(weight.shape[0], dtype=torch.float32)
            return cls(weight.to(torch.int8), absmax)
        codes, absmax, _ = library.int8_vectorwise_quant(weight.to(torch.float16))
        return cls(codes, absmax)

    @property
    def num_bytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.absmax.nbytes

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return ``(out_features, in_features)``, computed in float32 and rounded once."""
        return (self.codes * (self.absmax / _STEPS).unsqueeze(1)).to(dtype)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what a safetensors file holds of it, under the names that transformers uses."""
        return {"weight": self.codes, "SCB": self.absmax}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Int8Weight:
        """Return the weight whose :meth:`tensors` these are, bit for bit.

        Raises:
            CheckpointError: If a tensor is missing.
        """
        return cls(stored(tensors, "weight"), stored(tensors, "SCB"))


class LlmInt8Linear:
    """Product with an LLM.int8 weight: int8 with int8, outliers in the type of the input.

    A column of the input in which any row reaches the threshold is taken out for all rows and
    multiplied with dequantized weights. So a row's result depends on what shares its batch.

    Args:
        weight: The weight.
        bias: ``(out_features,)`` or None.
        threshold: Smallest absolute value of an outlier.

    Attributes:
        batch_invariant: False, in float32 too.
        path: ``packed``, or ``dequantized`` (on every call) where the processor cannot multiply
            int8.
        reason: Why it is dequantized.
    """

    batch_invariant = False

    def __init__(
        self, weight: Int8Weight, bias: torch.Tensor | None, threshold: float = 6.0
    ) -> None:
        """Keep the codes."""
        self.out_features, self.in_features = weight.codes.shape
        self._weight, self._bias, self._threshold = weight, bias, threshold
        self.reason = _why_not_packed(weight)
        self.path: Literal["packed", "dequantized"] = "dequantized" if self.reason else "packed"
        self.num_bytes = weight.num_bytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x W^T + b`` for ``x`` of shape ``(num_rows, in_features)``."""
        if not x.numel() or not self.out_features:
            return F.linear(x, self._weight.dequantize(x.dtype), self._bias)
        half = x.to(torch.float16, copy=True)  # the library writes into it
        codes, absmax, outliers = functional().int8_vectorwise_quant(half, self._threshold)
        y, _ = torch.ops.bitsandbytes.int8_mixed_scaled_mm(
            x, codes, self._weight.codes, absmax, self._weight.absmax, outliers, self._bias
        )
        return y


def _check_range(weight: torch.Tensor, layer: str) -> None:
    largest = float(weight.abs().max()) if weight.numel() else 0.0
    if largest > _FLOAT16_MAX:
        raise WeightFormatError(
            f"{layer} holds {largest:g}; LLM.int8 reads weights as float16, up to "
            f"{_FLOAT16_MAX:g}.",
            field=layer,
            value=largest,
            remedy="Use int8, which keeps the range.",
        )


def _why_not_packed(weight: Int8Weight) -> str | None:
    """Return why the library multiplies floats made from the codes."""
    if weight.codes.device.type == "cuda":
        rows = weight.codes.shape[1]
        return f"rows of {rows} are no multiple of 4" if rows % 4 else None
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return "bitsandbytes multiplies int8 on processors with AVX-512 only"
    return None
