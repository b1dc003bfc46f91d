"""Prepacked matrix products in C++ for float32 and bfloat16."""

from __future__ import annotations

import torch

from infopt.ops.cpu.build import extension
from infopt.ops.cpu.isa import AVX512, AVX512_BF16, current_isa


class PackedLinear:
    """``y = x W^T + b`` with the weight packed once in the order in which the kernel reads it.

    In float32 the bits of a row depend on that row alone: every output is one fixed sequence of
    multiply-adds, for any number of rows and threads.

    Args:
        weight: ``(out_features, in_features)``, float32 or bfloat16.
        bias: ``(out_features,)`` of the same type, or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Pack the weight; the original can be freed afterwards."""
        kernels = extension()
        self.out_features, self.in_features = weight.shape
        self._packed = kernels.pack_linear(weight.detach().contiguous())
        self._bias = None if bias is None else bias.detach().contiguous()
        self._multiply = kernels.linear
        self.packed_product = kernels.PackedProduct.dense(
            self._packed, self._bias, self.out_features, self.in_features
        )
        self.num_bytes = self._packed.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x W^T + b`` for ``x`` of shape ``(num_rows, in_features)``."""
        return self._multiply(x, self._packed, self._bias, self.out_features, self.in_features)


def why_not_faster(dtype: torch.dtype) -> str | None:
    """Return why these products would not beat oneDNN here, or None where they do.

    Measured: they win in bfloat16 with AMX up to a few hundred rows, with the AVX-512 dot product
    up to at least 128, and in float32 with AVX-512.
    """
    needed = AVX512_BF16 if dtype == torch.bfloat16 else AVX512
    if not current_isa().features >= needed.features:
        return f"no {needed.name} instructions"
    return None
