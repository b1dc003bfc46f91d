"""What is compared and timed for one kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}
"""Largest error over the largest expected value, by type of the result."""


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One kernel on one shape.

    Attributes:
        name: ``op/shape``.
        run: Launches the kernel; returns what is compared.
        expected: Computes the same with PyTorch, in float32 or float64.
        tolerance: Largest error over the largest expected value.
        num_bytes: Bytes that any implementation has to move.
        flops: Floating-point (or integer) operations, two per multiply-add.
        peak: Type whose measured product rate bounds ``flops``.
        peer: What PyTorch would do instead, to be timed beside it.
        timed: The launch alone, where ``run`` does more.
    """

    name: str
    run: Callable[[], torch.Tensor]
    expected: Callable[[], torch.Tensor]
    tolerance: float
    num_bytes: float
    flops: float = 0.0
    peak: torch.dtype = torch.bfloat16
    peer: Callable[[], object] | None = None
    timed: Callable[[], object] | None = None

    def error(self) -> float:
        """Run both and return the largest error over the largest expected value."""
        got, expected = self.run().double(), self.expected().double()
        if got.shape != expected.shape:
            return float("inf")
        scale = float(expected.abs().max())
        worst = float((got - expected).abs().max())
        return worst / scale if scale > 0 else worst


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shapes to run on: a model's, or tiny ones for the interpreter.

    Attributes:
        hidden: Width of the model.
        intermediate: Width of the MLP.
        num_heads: Query heads.
        num_kv_heads: Key heads.
        head_dim: Width of a head.
        tokens: Rows of a prefill.
        context: Cached tokens of a decode.
        batch: Sequences of a decode.
        vocab: Entries of the vocabulary.
        experts: Experts of a mixture.
    """

    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    tokens: int
    context: int
    batch: int
    vocab: int
    experts: int


LLAMA_8B = Sizes(4096, 14336, 32, 8, 128, 2048, 4096, 32, 128256, 128)
TINY = Sizes(64, 96, 4, 2, 16, 20, 70, 2, 300, 8)
