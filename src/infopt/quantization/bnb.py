"""Schemes ``nf4`` and ``llm.int8``: layers that bitsandbytes codes and multiplies.

What it does on a CPU depends on the layer, so every product tells its ``path``:

- NF4 stays packed in bfloat16, on processors with AVX-512 for bfloat16, where outputs come in 32s
  and rows end with a block; that kernel rounds the scales to bfloat16. Everything else, float32
  included, dequantizes the weight on every call.
- LLM.int8 multiplies int8 with int8 where the processor has AVX-512.
"""

from __future__ import annotations

import torch

from infopt.quantization.llm_int8 import Int8Weight, LlmInt8Linear
from infopt.quantization.nf4 import NF4Linear, NF4Weight


def make_nf4(
    weight: torch.Tensor, bias: torch.Tensor | None = None, *, layer: str = "weight"
) -> NF4Linear:
    """Return the NF4 product of a float weight, for inputs of its type.

    Args:
        weight: ``(out_features, in_features)``.
        bias: ``(out_features,)`` or None.
        layer: Its name, for messages.

    Raises:
        DependencyError: Without bitsandbytes.
        CheckpointError: If a value is NaN or infinite.
    """
    return NF4Linear(NF4Weight.quantize(weight, layer=layer), bias, weight.dtype)


def make_llm_int8(
    weight: torch.Tensor, bias: torch.Tensor | None = None, *, layer: str = "weight"
) -> LlmInt8Linear:
    """Return the LLM.int8 product of a float weight.

    Args:
        weight: ``(out_features, in_features)``.
        bias: ``(out_features,)`` or None.
        layer: Its name, for messages.

    Raises:
        DependencyError: Without bitsandbytes.
        CheckpointError: If a value is NaN or infinite.
        WeightFormatError: If a value is beyond float16.
    """
    return LlmInt8Linear(Int8Weight.quantize(weight, layer=layer), bias)
