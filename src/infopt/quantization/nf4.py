"""NF4 weights and their products, coded and multiplied by bitsandbytes.

    w[i] = absmax[i // block_size] * TABLE[code[i]],   i over the flattened weight

A block may run over the end of a row, and the last one may be filled partly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F

from infopt.errors import ConfigError
from infopt.ops.linear import DenseLinear
from infopt.quantization.bnb_library import functional, library, stored
from infopt.quantization.coded import check_finite

BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_TILE = 64  # the library's kernels lose accuracy in much longer blocks
_OUTPUTS = 32  # that its kernel for packed codes takes at a time on a CPU


@dataclass(frozen=True, slots=True)
class NF4Weight:
    """The weight of a layer in NF4.

    Attributes:
        packed: uint8 ``(ceil(out_features * in_features / 2), 1)``, the first of two codes in the
            high half.
        state: bitsandbytes' ``QuantState``: absmax of each block, table, shape, block size.
    """

    packed: torch.Tensor
    state: Any

    @classmethod
    def quantize(
        cls,
        weight: torch.Tensor,
        *,
        block_size: int = 64,
        double_quant: bool = False,
        layer: str = "weight",
    ) -> NF4Weight:
        """Code a weight.

        Args:
            weight: ``(out_features, in_features)`` in float32, bfloat16 or float16.
            block_size: Consecutive weights that share a scale, one of :data:`BLOCK_SIZES`.
            double_quant: Store the scales in 8 bits instead of 32.
            layer: Its name, for messages.

        Raises:
            DependencyError: Without bitsandbytes.
            ConfigError: There are no blocks of this size.
            CheckpointError: If a value is NaN or infinite.
        """
        _check_block_size(block_size)
        check_finite(weight, layer)
        packed, state = functional().quantize_4bit(
            weight.contiguous(),
            blocksize=block_size,
            compress_statistics=double_quant and weight.numel() > 0,
            quant_type="nf4",
        )
        return cls(packed, state)

    @property
    def shape(self) -> torch.Size:
        """``(out_features, in_features)``."""
        return torch.Size(self.state.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of codes and scales."""
        nested = self.state.state2.absmax.nbytes if self.state.nested else 0
        return self.packed.nbytes + self.state.absmax.nbytes + nested

    def absmax(self) -> torch.Tensor:
        """Return the scale of each block, float32 ``(num_blocks,)``."""
        if not self.state.nested:
            return self.state.absmax
        coarse = functional().dequantize_blockwise(self.state.absmax, self.state.state2)
        return coarse + self.state.offset

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return ``(out_features, in_features)``, computed in float32 and rounded once.

        bitsandbytes 0.50's CPU kernel takes the wrong scales where the rows of a weight do not end
        with a block, so it is given the blocks as rows, the last one filled up. Long blocks go as
        several short ones with the same scale.
        """
        if not self.shape.numel():
            return self.packed.new_empty(self.shape, dtype=dtype)
        tile = min(self.state.blocksize, _TILE)
        absmax = self.absmax().repeat_interleave(self.state.blocksize // tile)
        missing = absmax.numel() * tile // 2 - self.packed.numel()
        state = functional().QuantState(
            absmax,
            shape=torch.Size((absmax.numel(), tile)),
            code=self.state.code,
            blocksize=tile,
            quant_type="nf4",
            dtype=dtype,
        )
        codes = F.pad(self.packed.flatten(), (0, missing)).unsqueeze(1)
        values = functional().dequantize_4bit(codes, state).flatten()
        return values[: self.shape.numel()].view(self.shape)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what a safetensors file holds of it, under the names that transformers uses."""
        parts = self.state.as_dict(packed=True)
        return {"weight": self.packed, **{f"weight.{name}": part for name, part in parts.items()}}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> NF4Weight:
        """Return the weight whose :meth:`tensors` these are, bit for bit.

        Raises:
            DependencyError: Without bitsandbytes.
            CheckpointError: If a tensor is missing.
        """
        names = [name for name in tensors if name.startswith("weight.")]
        for name in ("absmax", "quant_map", "quant_state.bitsandbytes__nf4"):
            stored(tensors, f"weight.{name}")
        packed = stored(tensors, "weight")
        parts = {name.removeprefix("weight."): tensors[name] for name in names}
        return cls(packed, functional().QuantState.from_dict(parts, packed.device))


class NF4Linear:
    """Product with an NF4 weight.

    Args:
        weight: The weight.
        bias: ``(out_features,)`` or None.
        dtype: Type of inputs and outputs.

    Attributes:
        path: ``packed`` or ``dequantized`` (on every call). On CUDA the library goes by the number
            of rows: few are multiplied packed, many dequantized.
        reason: Why it is dequantized.
    """

    def __init__(self, weight: NF4Weight, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        """Reorder the codes for the kernel, if there is one."""
        self.out_features, self.in_features = weight.shape
        self._bias, self._dtype = bias, dtype
        self.reason = _why_not_packed(weight, dtype)
        self.path: Literal["packed", "dequantized"] = "dequantized" if self.reason else "packed"
        if self.path == "packed" and weight.packed.device.type == "cpu":
            weight = _reordered(weight)
        self._weight = weight
        self.num_bytes = weight.num_bytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x W^T + b`` for ``x`` of shape ``(num_rows, in_features)``."""
        if x.dtype != self._dtype:
            raise ValueError(f"the product is for {self._dtype}, got {x.dtype}")
        if self.path == "dequantized":
            return DenseLinear(self._weight.dequantize(x.dtype), self._bias)(x)
        packed, state = self._weight.packed, self._weight.state
        if x.device.type == "cpu":
            y = functional().gemv_4bit(x.contiguous(), packed, state=state)
            return y if self._bias is None else y + self._bias
        return library().matmul_4bit(x, packed, state, bias=self._bias)


def _check_block_size(block_size: int) -> None:
    if block_size not in BLOCK_SIZES:
        raise ConfigError(
            f"NF4 has no blocks of {block_size}.",
            field="block_size",
            value=block_size,
            remedy=f"Sizes: {', '.join(map(str, BLOCK_SIZES))}.",
        )


def _why_not_packed(weight: NF4Weight, dtype: torch.dtype) -> str | None:
    if not weight.shape.numel():
        return "there is nothing to multiply"
    in_features, block_size = weight.shape[1], weight.state.blocksize
    if in_features % block_size:
        return f"rows of {in_features} do not end with a block of {block_size}"
    return _why_not_on_cpu(weight, dtype) if weight.packed.device.type == "cpu" else None


def _why_not_on_cpu(weight: NF4Weight, dtype: torch.dtype) -> str | None:
    if dtype != torch.bfloat16:
        return "bitsandbytes' CPU kernel is for bfloat16"
    if weight.shape[0] % _OUTPUTS:
        return f"{weight.shape[0]} outputs are no multiple of {_OUTPUTS}"
    if not functional().has_avx512bf16():
        return "no AVX-512 for bfloat16"
    if _reorder() is None:
        return "this bitsandbytes does not tell how its CPU kernel wants the codes"
    return None


def _reorder() -> Any:
    """Return the function that bitsandbytes' own layers use; it has no public name."""
    return getattr(functional(), "_convert_weight_packed_for_cpu", None)


def _reordered(weight: NF4Weight) -> NF4Weight:
    """Return the weight in the order of the CPU kernel, scales rounded to bfloat16."""
    state = functional().QuantState(
        weight.absmax(),
        shape=weight.shape,
        code=weight.state.code,
        blocksize=weight.state.blocksize,
        quant_type="nf4",
        dtype=weight.state.dtype,
    )
    packed, state = _reorder()(weight.packed, state)  # changes the state it is given
    return NF4Weight(packed, state)
