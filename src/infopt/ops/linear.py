"""Matrix product with a weight that was prepared once: ``y = x W^T + b``.

Quantization schemes plug in here: anything that is a :class:`Linear` can stand in a layer.

Batch invariance in float32 (bits of a row depend on that row alone) is checked by
``infopt.ops.invariance``. oneDNN's prepacked product keeps one reduction order over K for two rows
or more, and at any number of threads; a single row takes another path, so it is padded to two.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from infopt.ops import cpu
from infopt.ops.dispatch import Implementation, OpTarget


class Linear(Protocol):
    """A weight that can be multiplied with."""

    in_features: int
    out_features: int
    num_bytes: int
    """Bytes read per product: the packed weight with its scales and bias."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x W^T + b`` for ``x`` of shape ``(num_rows, in_features)``."""
        ...


class DenseLinear:
    """`torch.nn.functional.linear` on the plain weight: the reference.

    Args:
        weight: ``(out_features, in_features)``.
        bias: ``(out_features,)`` or None.
    """

    MIN_ROWS = 16
    """Fewer rows can take another summation order in BLAS, so float32 input is padded to this."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Keep the weight as it is."""
        self.weight, self.bias = weight.contiguous(), bias
        self.out_features, self.in_features = weight.shape
        self.num_bytes = _num_bytes(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply, padding float32 rows for batch invariance."""
        num_rows = x.shape[0]
        if x.dtype == torch.float32 and num_rows < self.MIN_ROWS:
            x = F.pad(x, (0, 0, 0, self.MIN_ROWS - num_rows))
        return F.linear(x, self.weight, self.bias)[:num_rows]


class OneDnnLinear:
    """oneDNN product with the weight reordered once into its blocked layout.

    `F.linear` in bfloat16 on a CPU reorders the weight on every call; this does it at load time.

    Args:
        weight: ``(out_features, in_features)``, float32 or bfloat16.
        bias: ``(out_features,)`` or None.
    """

    PACK_ROWS = 32
    """Batch size the layout is chosen for; any number of rows works."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Reorder the weight; the original can be freed afterwards."""
        self.out_features, self.in_features = weight.shape
        self.num_bytes = _num_bytes(weight, bias)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), self.PACK_ROWS)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply; a single float32 row is padded to two for batch invariance."""
        num_rows = x.shape[0]
        if num_rows == 1 and x.dtype == torch.float32:
            x = F.pad(x, (0, 0, 0, 1))
        y = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y[:num_rows]


def _num_bytes(weight: torch.Tensor, bias: torch.Tensor | None) -> int:
    return weight.nbytes + (0 if bias is None else bias.nbytes)


def _why_not_onednn(target: OpTarget) -> str | None:
    if target.device.type != "cpu":
        return "a CPU path"
    if target.dtype not in (torch.float32, torch.bfloat16):
        return f"{target.dtype} is not float32 or bfloat16"
    if not torch.backends.mkldnn.is_available():
        return "this torch was built without oneDNN"
    if target.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "no AVX-512 for bfloat16"
    return None


IMPLEMENTATIONS = [
    Implementation("cpu", cpu.load_linear, cpu.why_not_linear),
    Implementation("onednn", lambda: OneDnnLinear, _why_not_onednn),
    Implementation("reference", lambda: DenseLinear),
]
