"""Coded weights as products that run in the packed form, where there are kernels for it.

``path`` says what happens: ``packed`` multiplies with codes, ``dequantized`` with float weights
made from the codes when the model was loaded (same values, no memory saved). Which one, and why, is
in the report of the scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from infopt.ops import OpSet, cpu, gpu
from infopt.ops.dispatch import OpTarget
from infopt.ops.linear import Linear
from infopt.quantization.coded import ActivationFormat, CodedWeight

_CPU_BLOCK = 32  # inputs that the CPU kernels read at a time: groups are multiples
_CPU_BITS = (2, 3, 4, 8)
_GPU_GROUPS = (32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Product:
    """A product and how it runs.

    Attributes:
        linear: Ready to multiply.
        path: ``packed`` or ``dequantized``.
        reason: Why it is dequantized.
    """

    linear: Linear
    path: str
    reason: str | None = None


class ProductMaker:
    """Packs coded weights for one device and type.

    Args:
        ops: For products of float weights.
        device: Where the model runs.
        dtype: Compute type.
    """

    def __init__(self, ops: OpSet, device: torch.device, dtype: torch.dtype) -> None:
        """Look for kernels."""
        self._ops, self._device, self._dtype = ops, device, dtype
        target = OpTarget(device, dtype)
        # A backend asked for by name holds for the products as well.
        asked = ops.choices["linear"].backend
        self._why_not_cpu = "asked for the reference" if asked == "reference" else None
        self._why_not_cpu = self._why_not_cpu or cpu.why_not(target)
        self._why_not_gpu = gpu.why_not(target)

    @property
    def backend(self) -> str:
        """Where packed products run: ``cpu``, ``triton`` or ``reference``."""
        if self._why_not_cpu is None:
            return "cpu"
        return "triton" if self._why_not_gpu is None else "reference"

    def make(self, coded: CodedWeight, bias: torch.Tensor | None) -> Product:
        """Pack a weight; dequantize it where no kernel reads its format."""
        if self._why_not_cpu is None:
            reason, pack = _why_not_on_cpu(coded), _on_cpu
        elif self._why_not_gpu is None:
            reason, pack = _why_not_on_gpu(coded), _on_gpu
        else:
            reason, pack = self._why_not_cpu, None
        if reason is None and pack is not None:
            return Product(pack(coded, bias), "packed")
        return Product(self._dequantized(coded, bias), "dequantized", reason)

    def _dequantized(self, coded: CodedWeight, bias: torch.Tensor | None) -> Linear:
        weight = coded.dequantize(self._dtype).to(self._device)
        linear = self._ops.linear(weight, bias)
        if coded.activation.kind == "float":
            return linear
        return RoundedInput(linear, coded.activation)


class RoundedInput:
    """Rounds the input to the codes of a format before it multiplies with float weights.

    Emulates what hardware with products of such codes computes; no time is saved.

    Args:
        linear: The product.
        activation: What happens to its input.
    """

    def __init__(self, linear: Linear, activation: ActivationFormat) -> None:
        """Wrap a product."""
        self._linear, self._activation = linear, activation
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.num_bytes = linear.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``round(x) W^T + b`` for ``x`` of shape ``(num_rows, in_features)``."""
        return self._linear(round_input(x, self._activation))


def round_input(x: torch.Tensor, activation: ActivationFormat) -> torch.Tensor:
    """Round rows to the codes of a format and back.

    Args:
        x: ``(..., in_features)``.
        activation: The format.

    Returns:
        The values that the codes stand for, in the type of ``x``.
    """
    if activation.kind == "float":
        return x
    wide = x.float()
    if activation.kind == "static":
        assert activation.scale is not None
        scale = torch.tensor(activation.scale)
    else:
        scale = wide.abs().amax(dim=-1, keepdim=True) / activation.steps_to_largest
        scale = torch.where(scale == 0, 1.0, scale)
    steps = (wide / scale).clamp(*activation.bounds)
    codes = steps.to(torch.float8_e4m3fn).float() if activation.number == "float" else steps.round()
    return (codes * scale).to(x.dtype)


def concatenate(parts: Sequence[CodedWeight]) -> CodedWeight:
    """Stack the rows of weights that read the same input.

    Raises:
        ValueError: If their formats differ.
    """
    first = parts[0]
    if any(p.format != first.format or p.activation != first.activation for p in parts):
        raise ValueError("parts of one product have different formats")
    if len(parts) == 1:
        return first
    zeros = [p.zero for p in parts if p.zero is not None]
    scales = [p.scale for p in parts]
    if len({s.dtype for s in scales}) > 1:
        scales = [s.float() for s in scales]
    return CodedWeight(
        first.format,
        torch.cat([p.codes for p in parts]),
        torch.cat(scales),
        torch.cat(zeros) if zeros else None,
        first.activation,
        first.group_index,
    )


def _why_not_on_cpu(coded: CodedWeight) -> str | None:
    fmt, activation = coded.format, coded.activation
    if coded.group_index is not None:
        return "groups are not in the order of the inputs"
    if fmt.group_size is not None and fmt.group_size % _CPU_BLOCK:
        return f"groups of {fmt.group_size} are no multiple of {_CPU_BLOCK}"
    if fmt.number == "int" and fmt.bits not in _CPU_BITS:
        return f"no {fmt.bits}-bit kernel on this device"
    if activation.kind != "float" and activation.number != fmt.number:
        return f"no kernel for {activation.number} inputs and {fmt.number} weights"
    return None


def _on_cpu(coded: CodedWeight, bias: torch.Tensor | None) -> Linear:
    from infopt.ops.cpu.quantized import CodeLinear

    bits = 16 if coded.activation.kind == "float" else coded.activation.bits
    if coded.format.number == "float":
        from infopt.ops.cpu.fp8 import Fp8Linear

        scale = coded.scale.squeeze(1)
        return Fp8Linear(
            coded.codes,
            scale,
            bias,
            activation_bits=bits,
            activation_scale=coded.activation.scale,
        )
    group = coded.format.group_size or -(-coded.in_features // _CPU_BLOCK) * _CPU_BLOCK
    return CodeLinear(
        coded.codes,
        coded.scale,
        _offset(coded),
        bias,
        code_bits=coded.format.bits,
        group_size=group,
        activation_bits=bits,
        activation_scale=coded.activation.scale,
    )


def _why_not_on_gpu(coded: CodedWeight) -> str | None:
    fmt, activation = coded.format, coded.activation
    if coded.group_index is not None:
        return "groups are not in the order of the inputs"
    if fmt.number == "float":
        return None if activation.kind == "float" else "inputs stay floats in the float8 kernel"
    if fmt.bits == 4 and activation.kind == "float":
        return None if fmt.group_size in _GPU_GROUPS else f"no kernel for {fmt.describe()}"
    is_plain = fmt.bits == 8 and fmt.group_size is None and fmt.symmetric
    if is_plain and activation.kind != "static":
        return None
    return f"no kernel for {fmt.describe()} with {activation.kind} inputs on this device"


def _on_gpu(coded: CodedWeight, bias: torch.Tensor | None) -> Linear:
    from infopt.ops.gpu import quantized

    fmt = coded.format
    scale = coded.scale.squeeze(1).contiguous()
    if fmt.number == "float":
        return quantized.Float8Linear(coded.codes, scale, bias)
    if fmt.bits == 4:
        assert fmt.group_size is not None
        return quantized.CodeLinear(
            coded.codes, coded.scale, _offset(coded), bias, group_size=fmt.group_size
        )
    signed = (coded.codes.to(torch.int16) - fmt.middle).to(torch.int8)
    made = quantized.Int8Linear if coded.activation.kind == "float" else quantized.DynamicInt8Linear
    return made(signed, scale, bias)


def _offset(coded: CodedWeight) -> torch.Tensor:
    """Return ``-scale * zero``, so that a weight is ``scale * code + offset``."""
    scale = coded.scale.float()
    return -scale * (float(coded.format.middle) if coded.zero is None else coded.zero.float())
