"""Registers ``nf4`` and ``llm.int8``: all layers but the head, as is usual for bitsandbytes."""

from __future__ import annotations

from typing import Any

import torch

from infopt.models.checkpoint import Checkpoint
from infopt.models.linear_source import LinearSource
from infopt.models.tensor_names import HEAD_LAYER
from infopt.ops import OpSet
from infopt.ops.linear import Linear
from infopt.quantization.bnb import make_llm_int8, make_nf4
from infopt.quantization.scheme import SCHEMES, SchemeReport

_MAKERS = {"nf4": make_nf4, "llm.int8": make_llm_int8}


class BitsAndBytesScheme:
    """Codes layers when they are loaded.

    Args:
        name: ``nf4`` or ``llm.int8``.
        ops: For the head.
        dtype: Compute type.
    """

    def __init__(self, name: str, ops: OpSet, dtype: torch.dtype) -> None:
        """Prepare the report."""
        self._make, self._ops = _MAKERS[name], ops
        self._float = str(dtype).removeprefix("torch.")
        self.report = SchemeReport(name, backend="bitsandbytes")
        self._num_bits = self._num_weights = 0

    def __call__(self, source: LinearSource) -> Linear:
        """Make a layer."""
        weight, bias = source.weight(), source.bias()
        if source.name == HEAD_LAYER:
            self._note(self._float, weight.numel(), weight.nbytes)
            return self._ops.linear(weight, bias)
        made = self._make(weight, bias, layer=source.name)
        self._note(self.report.scheme, weight.numel(), made.num_bytes)
        self.report.path = made.path
        if made.reason:
            self.report.reason = f"dequantized on every call: {made.reason}"
        return made

    def _note(self, fmt: str, num_weights: int, num_bytes: int) -> None:
        self.report.formats[fmt] += 1
        self._num_bits += 8 * num_bytes
        self._num_weights += num_weights
        self.report.weight_bits = self._num_bits / self._num_weights


@SCHEMES.register("nf4")
def _nf4(checkpoint: Checkpoint, ops: OpSet, device: Any, dtype: torch.dtype) -> BitsAndBytesScheme:
    del checkpoint, device
    return BitsAndBytesScheme("nf4", ops, dtype)


@SCHEMES.register("llm.int8")
def _llm_int8(
    checkpoint: Checkpoint, ops: OpSet, device: Any, dtype: torch.dtype
) -> BitsAndBytesScheme:
    del checkpoint, device
    return BitsAndBytesScheme("llm.int8", ops, dtype)
