"""Decode steps replayed from captured graphs: one launch instead of hundreds.

A decode step of a small model is limited by its launches: a few hundred kernels, each shorter than
the Python that starts it. A graph records them once, with all their addresses, and starts them
together. So a step must find its inputs where the recording found them, in as many rows and pages
as were recorded. Hence buckets: a batch is padded to the next recorded size. Padding rows are
tokens at position 0 that write to the null page; their results are dropped.

A bucket is captured when a step first needs it. Capturing all of them at the start would take
minutes and memory for sizes that a run never meets; the load generators' warm-up meets those that
count, so that no measured step captures. A capture that fails is announced once, and steps run
kernel by kernel from then on.

What runs inside must not wait for the device, copy from the host, or choose a launch by values on
the device. The first run of a bucket fills ``ForwardContext.shared`` and compiles kernels before
anything is recorded. The output head stays outside: its logits, as wide as the vocabulary, would be
kept once per bucket.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from infopt.cache.groups import KVLayout
from infopt.engine.static_inputs import InputMemory, InputShape, StaticInputs
from infopt.ops import ForwardContext

logger = logging.getLogger(__name__)

MIN_CONTEXT_TOKENS = 512
"""Context of the smallest bucket; longer ones double. What attention launches depends on it."""

Step = Callable[[], torch.Tensor]
"""Computes on fixed inputs and returns its result, always in the same place once captured."""


class GraphBackend(Protocol):
    """Records what a function launches."""

    def capture(self, step: Step) -> Step:
        """Run a step and record it; return what repeats it.

        Raises:
            RuntimeError: It cannot be recorded.
        """
        ...


_CAPTURING = threading.Lock()
"""A process may record one graph at a time, and a server may hold several engines."""


class CudaGraphs:
    """CUDA graphs that share their memory.

    They never run at the same time, and a result is read before the next replay, so the memory of
    one graph's intermediate values can serve another's.

    Args:
        device: Where the model runs.
    """

    def __init__(self, device: torch.device) -> None:
        """Make the pool."""
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, step: Step) -> Step:
        """Run the step once as it is, then record it.

        Raises:
            RuntimeError: The step did something that cannot be recorded.
        """
        with _CAPTURING, torch.cuda.device(self._device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step()  # compiles kernels and makes library handles, which no recording may
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Only this thread is watched: another engine may allocate meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = step()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """The largest steps that are captured.

    Attributes:
        max_rows: Sequences in a step.
        max_context: Tokens of a sequence.
        block_size: Tokens per page.
        windows: Sliding window of each KV group, or None.
    """

    max_rows: int
    max_context: int
    block_size: int
    windows: Sequence[int | None]

    @classmethod
    def of(cls, layout: KVLayout, max_rows: int, max_context: int) -> GraphLimits:
        """Return the limits of a model's KV layout."""
        windows = [group.window for group in layout.groups]
        return cls(max_rows, max_context, layout.block_size, windows)

    def shape_for(self, num_rows: int, num_pages: int) -> InputShape | None:
        """Return the smallest bucket that holds a step; None if there is none."""
        if num_rows > self.max_rows or num_pages > self._pages_of(self.max_context):
            return None
        tokens = MIN_CONTEXT_TOKENS
        while self._pages_of(tokens) < num_pages:
            tokens *= 2
        return InputShape(self._rows_for(num_rows), self._pages_of(min(tokens, self.max_context)))

    @property
    def largest(self) -> InputShape:
        """The bucket that holds every step."""
        return InputShape(self.max_rows, self._pages_of(self.max_context))

    def _pages_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _rows_for(self, num_rows: int) -> int:
        """Return 1, 2, 4, a multiple of 8, or the limit."""
        size = next((n for n in (1, 2, 4) if n >= num_rows), -(-num_rows // 8) * 8)
        return min(size, self.max_rows)


@dataclass(slots=True)
class _Bucket:
    """Inputs in their places, and what computes on them."""

    inputs: StaticInputs
    replay: Step
    num_replays: int = 0


@dataclass(slots=True)
class DecodeGraphs:
    """Captured decode steps by size.

    Args:
        compute: Returns the hidden states of ``logit_rows`` of a batch on the device.
        backend: Records it.
        limits: What to capture at most.
        device: Where ``compute`` runs.
    """

    compute: Callable[[ForwardContext], torch.Tensor]
    backend: GraphBackend
    limits: GraphLimits
    device: torch.device
    failure: str | None = field(default=None, init=False)
    """Why a capture failed; nothing is captured or replayed after that."""
    _memory: InputMemory | None = field(default=None, init=False)
    _buckets: dict[InputShape, _Bucket] = field(default_factory=dict, init=False)

    def run(self, ctx: ForwardContext) -> torch.Tensor | None:
        """Replay a step that has one token per sequence.

        Args:
            ctx: The batch, on the host.

        Returns:
            Hidden states of ``ctx.logit_rows``, valid until the next call; None where the step must
            run kernel by kernel.
        """
        bucket = self._bucket_for(ctx)
        if bucket is None:
            return None
        bucket.inputs.fill(ctx)
        bucket.num_replays += 1
        hidden = bucket.replay()[: ctx.logit_rows.shape[0]]
        if ctx.expert_ids is not None:
            chosen = bucket.inputs.context.expert_ids
            assert chosen is not None, "the bucket was captured without choices of experts"
            ctx.expert_ids.copy_(chosen[:, : ctx.num_tokens])
        return hidden

    def describe(self) -> dict[str, Any]:
        """Return state, reason, and how often which bucket was replayed, for records."""
        replays = {str(shape): b.num_replays for shape, b in sorted(self._buckets.items())}
        return {
            "state": "failed" if self.failure else "on",
            "reason": self.failure or "preferred",
            "num_replays": sum(replays.values()),
            "buckets": replays,
        }

    def _bucket_for(self, ctx: ForwardContext) -> _Bucket | None:
        """Return the bucket of a step, captured now if it is new."""
        if self.failure is not None or not 0 < ctx.num_seqs == ctx.num_decodes == ctx.num_tokens:
            return None
        if ctx.queries is not None or any(group.rows is not None for group in ctx.groups):
            return None  # evicted rows: their numbers have no place among the fixed inputs
        num_pages = max(group.block_tables.shape[1] for group in ctx.groups)
        shape = self.limits.shape_for(ctx.num_seqs, num_pages)
        if shape is None:
            return None
        known = self._buckets.get(shape)
        lacks_choices = known is not None and known.inputs.context.expert_ids is None
        if known is None or (lacks_choices and ctx.expert_ids is not None):
            self._capture(shape, ctx)
        return self._buckets.get(shape)

    def _capture(self, shape: InputShape, ctx: ForwardContext) -> None:
        if self._memory is None:
            self._memory = InputMemory(self.limits.largest, self.limits.windows, self.device)
        inputs = StaticInputs(shape, self._memory, self.limits.block_size)
        inputs.fill(ctx)  # a capture computes, too: it must write where this step will
        if ctx.expert_ids is not None:
            layers, _, choices = ctx.expert_ids.shape
            inputs.context.expert_ids = ctx.expert_ids.new_empty(layers, shape.rows, choices)
        try:
            replay = self.backend.capture(lambda: self.compute(inputs.context))
        except RuntimeError as error:
            self.failure = f"capturing {shape} failed: {str(error).splitlines()[0]}"
            logger.warning("decode steps run kernel by kernel: %s", self.failure)
        else:
            self._buckets[shape] = _Bucket(inputs, replay)
