"""Schemes ``q4_1`` and ``q4_1-a8``: the blocks of a GGUF file, multiplied as they are stored.

    Q4_1   w = d * code + m      Q4_0   w = d * (code - 8)      Q8_0   w = d * code

with one d (and m) per 32 inputs. Nothing is requantized, so the weights are exactly those that the
float path gets by dequantizing; they take 5 bits instead of 16. Activations are quantized to 16
bits row by row, which is finer than bfloat16, or to 8 bits in ``q4_1-a8``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from infopt.errors import WeightFormatError
from infopt.models.checkpoint import Checkpoint
from infopt.models.gguf_checkpoint import GGUFCheckpoint
from infopt.models.linear_source import LinearSource
from infopt.ops import OpSet, cpu
from infopt.ops.dispatch import OpTarget
from infopt.ops.linear import Linear
from infopt.quantization.scheme import SCHEMES, SchemeReport

BLOCK = 32
"""Inputs that share a scale in these formats."""

_Codes = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class StoredBlocks:
    """Keeps Q4_1, Q4_0 and Q8_0 tensors as they are; other types become dense layers.

    Args:
        checkpoint: A GGUF file with Q4_1 tensors.
        ops: For the dense layers.
        device: Where the model runs.
        dtype: Compute type.
        activation_bits: 8 or 16.

    Raises:
        WeightFormatError: If the file holds no Q4_1 tensor.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        ops: OpSet,
        device: torch.device,
        dtype: torch.dtype,
        activation_bits: int,
    ) -> None:
        """Look for kernels; without them blocks are dequantized when they are loaded."""
        name = "q4_1" if activation_bits == 16 else f"q4_1-a{activation_bits}"
        self._file = _gguf(checkpoint, name)
        self._ops, self._activation_bits = ops, activation_bits
        self._why_dense = cpu.why_not(OpTarget(device, dtype))
        self._float = str(dtype).removeprefix("torch.")
        self.report = SchemeReport(name, backend="reference" if self._why_dense else "cpu")
        self.report.path = "dequantized" if self._why_dense else "packed"
        self.report.on_stored_grid = True  # nothing is requantized
        self._num_weights = self._num_bytes = 0
        if self._why_dense is not None:
            self.report.reason = f"no cpu: {self._why_dense}; the blocks run dequantized"

    def __call__(self, source: LinearSource) -> Linear:
        """Make a layer."""
        raw = [self._file.raw(name) for name in source.weight_names]
        kinds = {kind for kind, _, _ in raw}
        kind = kinds.pop() if len(kinds) == 1 else "mixed"
        if self._why_dense is not None or kind not in _READERS:
            self.report.formats[self._float] += 1
            weight = source.weight()
            self._note(weight.numel(), weight.nbytes)
            return self._ops.linear(weight, source.bias())
        self.report.formats[kind.lower()] += 1
        parts = [_READERS[kind](blocks, shape[1]) for _, blocks, shape in raw]
        codes, scale, offset = (torch.cat(column) for column in zip(*parts, strict=True))
        self._note(codes.numel(), sum(blocks.nbytes for _, blocks, _ in raw))
        from infopt.ops.cpu.quantized import CodeLinear

        return CodeLinear(
            codes,
            scale,
            offset,
            source.bias(),
            code_bits=8 if kind == "Q8_0" else 4,
            group_size=BLOCK,
            activation_bits=self._activation_bits,
        )

    def _note(self, num_weights: int, num_bytes: int) -> None:
        self._num_weights += num_weights
        self._num_bytes += num_bytes
        self.report.weight_bits = 8 * self._num_bytes / self._num_weights


def _gguf(checkpoint: Checkpoint, scheme: str) -> GGUFCheckpoint:
    file = cast(GGUFCheckpoint, checkpoint)
    linear = [n for n in checkpoint.names() if n.endswith("_proj.weight")]
    if checkpoint.format != "gguf" or "Q4_1" not in {file.raw(n)[0] for n in linear}:
        raise WeightFormatError(
            f"quantization={scheme!r} runs the Q4_1 blocks of a GGUF file, and "
            f"{checkpoint.path.name} has none.",
            field="quantization",
            value=scheme,
            remedy="Use 'none', or a model that is stored in Q4_1.",
        )
    return file


def _rows(blocks: np.ndarray, block_bytes: int) -> np.ndarray:
    """Return ``(out_features, num_blocks, block_bytes)``."""
    return np.ascontiguousarray(blocks).reshape(blocks.shape[0], -1, block_bytes)


def _half(rows: np.ndarray, start: int) -> torch.Tensor:
    """Return the float16 at a byte of each block as ``(out_features, num_blocks)``."""
    values = np.ascontiguousarray(rows[:, :, start : start + 2]).view("<f2")[..., 0]
    return torch.from_numpy(values.astype(np.float32))


def _nibbles(packed: np.ndarray) -> torch.Tensor:
    """Return 32 codes per block of 16 bytes: low halves first, then high halves."""
    codes = np.concatenate([packed & 15, packed >> 4], axis=-1)
    return torch.from_numpy(codes.reshape(codes.shape[0], -1))


def _q4_1(blocks: np.ndarray, in_features: int) -> _Codes:
    rows = _rows(blocks, 20)
    return _nibbles(rows[:, :, 4:])[:, :in_features], _half(rows, 0), _half(rows, 2)


def _q4_0(blocks: np.ndarray, in_features: int) -> _Codes:
    rows = _rows(blocks, 18)
    scale = _half(rows, 0)
    return _nibbles(rows[:, :, 2:])[:, :in_features], scale, scale * -8.0


def _q8_0(blocks: np.ndarray, in_features: int) -> _Codes:
    rows = _rows(blocks, 34)
    codes = rows[:, :, 2:].view(np.int8).astype(np.int16) + 128
    scale = _half(rows, 0)
    flat = torch.from_numpy(codes.astype(np.uint8).reshape(codes.shape[0], -1))
    return flat[:, :in_features], scale, scale * -128.0


_READERS: dict[str, Callable[[np.ndarray, int], _Codes]] = {
    "Q4_1": _q4_1,
    "Q4_0": _q4_0,
    "Q8_0": _q8_0,
}


@SCHEMES.register("q4_1")
def _stored(checkpoint: Checkpoint, ops: OpSet, device: Any, dtype: torch.dtype) -> StoredBlocks:
    return StoredBlocks(checkpoint, ops, device, dtype, 16)


@SCHEMES.register("q4_1-a8")
def _stored_a8(checkpoint: Checkpoint, ops: OpSet, device: Any, dtype: torch.dtype) -> StoredBlocks:
    return StoredBlocks(checkpoint, ops, device, dtype, 8)
