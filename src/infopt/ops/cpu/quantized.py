"""Products with quantized weights in C++: int8, groups of 2 to 4 bits, and GGUF's q4_1 blocks.

All hold ``w = scale * code + offset`` with codes of 2, 3, 4 or 8 bits. Activations are quantized
inside the kernel, in the groups of the weights (whole rows where an output has one scale): to 8
bits, or to 16 bits as two planes of bytes. That is finer than bfloat16, so for practical purposes
only the weights are quantized then. A scale that calibration found can be given for all activations
instead: they are rounded to 8 bits of it and saturate. Sums of codes are exact integers and scales
are applied in one order, so float32 products are batch invariant. In bfloat16, many rows (over half
a group's inputs, or over 24) may be multiplied with weights rounded to bfloat16 instead.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from infopt.ops.cpu.build import extension

_BLOCK = 32  # outputs that are packed together
_MAX_GROUP = 1 << 16  # the products of a group's bytes add up to less than 2 ** 31


class CodeLinear:
    """``y = x W^T + b`` with ``W[o, i] = scale[o, g] codes[o, i] + offset[o, g]``, g = i // group.

    Args:
        codes: uint8 ``(out_features, in_features)``, below ``2 ** code_bits``.
        scale: float16 or float32 ``(out_features, num_groups)``.
        offset: Same shape and type.
        bias: ``(out_features,)`` in the type of the activations, or None.
        code_bits: 2, 3, 4 or 8; that many bits are kept per weight.
        group_size: Inputs that share a scale, a multiple of 32, at most 65536.
        activation_bits: 8 or 16.
        activation_scale: Of all activations (8 bits only): ``x`` becomes
            ``scale * clamp(round(x / scale), -128, 127)``. None finds one per row and group.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        offset: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        code_bits: int,
        group_size: int,
        activation_bits: int = 16,
        activation_scale: float | None = None,
    ) -> None:
        """Pack codes and scales."""
        if group_size > _MAX_GROUP:
            raise ValueError(f"group_size must be at most {_MAX_GROUP}, got {group_size}")
        self.out_features, self.in_features = codes.shape
        num_groups = -(-self.in_features // group_size)
        for name, tensor in (("scale", scale), ("offset", offset)):
            if tensor.shape != (self.out_features, num_groups):
                raise ValueError(
                    f"{name} must have shape {(self.out_features, num_groups)}, "
                    f"got {tuple(tensor.shape)}"
                )
        if int(codes.max()) >= 2**code_bits:
            raise ValueError(f"codes must be below {2**code_bits}, got {int(codes.max())}")
        kernels = extension()
        self.activation_bits, self.activation_scale = activation_bits, activation_scale
        self._packed = kernels.pack_codes(codes.contiguous(), code_bits)
        self._scales = _pack_scales(scale, offset)
        self._bias = None if bias is None else bias.detach().contiguous()
        self._multiply = kernels.linear_quantized
        shape = (self.out_features, self.in_features)
        self._format = (*shape, group_size, code_bits, activation_bits, activation_scale)
        self.packed_product = kernels.PackedProduct.codes(
            self._packed, self._scales, self._bias, *self._format
        )
        self.num_bytes = self._packed.nbytes + self._scales.nbytes
        self.num_bytes += 0 if bias is None else bias.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x W^T + b`` for ``x`` of shape ``(num_rows, in_features)``."""
        return self._multiply(x, self._packed, self._scales, self._bias, *self._format)


class Int8Linear(CodeLinear):
    """int8 weights with one scale per output; only the weights are quantized.

    Args:
        codes: int8 ``(out_features, in_features)``.
        scale: float32 ``(out_features,)``.
        bias: ``(out_features,)`` in the type of the activations, or None.
        activation_scale: Of all activations, where they have 8 bits, or None.
    """

    ACTIVATION_BITS = 16

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        activation_scale: float | None = None,
    ) -> None:
        """Pack the weight as unsigned codes."""
        scale = scale.float().unsqueeze(1)
        in_features = codes.shape[1]
        super().__init__(
            (codes.to(torch.int16) + 128).to(torch.uint8),
            scale,
            scale * -128.0,
            bias,
            code_bits=8,
            group_size=-(-in_features // _BLOCK) * _BLOCK,
            activation_bits=self.ACTIVATION_BITS,
            activation_scale=activation_scale,
        )


class DynamicInt8Linear(Int8Linear):
    """int8 weights and activations (W8A8): a scale per row at run time, or one given for all."""

    ACTIVATION_BITS = 8


class Int4Linear(CodeLinear):
    """4-bit weights in groups: ``scale * (code - zero)``.

    Args:
        codes: uint8 ``(out_features, in_features)``, below 16.
        scale: ``(out_features, num_groups)``; float16 where that holds it exactly.
        zero: Same shape, or None for 8 (symmetric).
        bias: ``(out_features,)`` in the type of the activations, or None.
        group_size: Inputs that share a scale, a multiple of 32.
        activation_bits: 8 or 16.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        zero: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *,
        group_size: int,
        activation_bits: int = 16,
    ) -> None:
        """Turn zero points into offsets and pack."""
        offset = -scale.float() * (8.0 if zero is None else zero.float())
        super().__init__(
            codes,
            scale,
            offset,
            bias,
            code_bits=4,
            group_size=group_size,
            activation_bits=activation_bits,
        )


class Q41Linear(CodeLinear):
    """The q4_1 blocks of GGUF as they are stored: ``d * code + m`` for each 32 inputs.

    Args:
        codes: uint8 ``(out_features, in_features)``, below 16.
        scale: float16 ``(out_features, in_features / 32)``, the d of each block.
        minimum: Same shape, the m of each block.
        bias: ``(out_features,)`` in the type of the activations, or None.
        activation_bits: 8 or 16.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        minimum: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        activation_bits: int = 16,
    ) -> None:
        """Pack the blocks."""
        super().__init__(
            codes,
            scale,
            minimum,
            bias,
            code_bits=4,
            group_size=32,
            activation_bits=activation_bits,
        )


def _pack_scales(scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """Return ``(out / 32, num_groups, 2, 32)``, in float16 if that loses nothing."""
    both = torch.stack([scale.float(), offset.float()], dim=-1)
    both = F.pad(both, (0, 0, 0, 0, 0, -both.shape[0] % _BLOCK))
    both = both.view(-1, _BLOCK, *both.shape[1:]).permute(0, 2, 3, 1).contiguous()
    narrow = both.half()
    return narrow if torch.equal(narrow.float(), both) else both
