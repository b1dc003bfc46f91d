"""A step of equal sequences that can be run again and again, on the engine's own pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from infopt.bench.roofline_ops import StepSize
from infopt.engine.engine import Engine
from infopt.engine.sampler import SamplingRow, sample
from infopt.engine.sequence import Sequence
from infopt.engine.step_plan import ScheduledSequence, StepPlan
from infopt.models.config import ModelConfig
from infopt.outputs import RequestMetrics
from infopt.sampling_params import SamplingParams

Clock = Callable[[], float]
"""Seconds; it waits for the device."""

_CHUNK = 256
"""Tokens of a sequence that are cached at a time."""


@dataclass(frozen=True, slots=True)
class StepKind:
    """A step of equal sequences.

    Attributes:
        num_seqs: Sequences.
        num_cached: Tokens of each that count as computed.
        num_new: Tokens of each that the step computes.
    """

    num_seqs: int
    num_cached: int
    num_new: int = 1

    @property
    def length(self) -> int:
        """Tokens of a sequence after the step."""
        return self.num_cached + self.num_new

    def size(self, config: ModelConfig) -> StepSize:
        """Return what its ops work on."""
        return StepSize.uniform(config, self.num_seqs, self.num_cached, self.num_new)


@dataclass(frozen=True, slots=True)
class UniformStep:
    """A step that can be run again: it computes the same tokens into the same slots."""

    engine: Engine
    plan: StepPlan
    rows: list[int]

    def run(self, now: Clock) -> dict[str, float]:
        """Run it and return the seconds of layers, head and sampling."""
        runner = self.engine.runner
        ctx = runner.build(self.plan, self.rows)
        start = now()
        hidden = runner.hidden(ctx)
        layers = now()
        logits = torch.cat(list(runner.logit_blocks(hidden)))
        head = now()
        sample(logits, self._sampling_rows())
        return {"layers": layers - start, "head": head - layers, "sampling": now() - head}

    def _sampling_rows(self) -> list[SamplingRow]:
        ends = self.engine.runner.model.config.eos_token_ids
        return [SamplingRow.of(item.sequence, ends) for item in self.plan.scheduled]


@contextmanager
def uniform_step(engine: Engine, kind: StepKind) -> Iterator[UniformStep | None]:
    """Give the sequences of a step their pages until the block ends."""
    engine.reset_prefix_cache()
    sequences = [_sequence(engine, kind, index) for index in range(kind.num_seqs)]
    rows = [(index + 1) * kind.num_new - 1 for index in range(kind.num_seqs)]
    scheduled = [ScheduledSequence(s, kind.num_cached, kind.num_new) for s in sequences]
    step = UniformStep(engine, StepPlan(scheduled), rows)
    try:
        yield step if _fits(engine, kind, sequences) else None
    finally:
        for sequence in sequences:
            engine.cache.free(sequence.cache)


def _fits(engine: Engine, kind: StepKind, sequences: list[Sequence]) -> bool:
    """Allocate the pages; tell whether this is a step that the engine could run."""
    config = engine.config
    return (
        kind.num_seqs <= config.max_num_seqs
        and kind.num_seqs * kind.num_new <= config.max_num_batched_tokens
        and kind.length <= engine.checker.max_model_len
        and all(_fill(engine, sequence, kind) for sequence in sequences)
    )


def _fill(engine: Engine, sequence: Sequence, kind: StepKind) -> bool:
    """Give a sequence the pages it would have if its cached tokens had been computed in chunks."""
    cache, tokens = engine.cache, sequence.token_ids
    for end in range(_CHUNK, kind.num_cached + _CHUNK, _CHUNK):
        num_tokens = min(end, kind.num_cached)
        if not cache.allocate(sequence.cache, num_tokens):
            return False
        cache.commit(sequence.cache, tokens, num_tokens)
    return cache.allocate(sequence.cache, kind.length)


def _sequence(engine: Engine, kind: StepKind, index: int) -> Sequence:
    vocab = engine.runner.model.config.num_real_tokens
    return Sequence(
        seq_id=index,
        request_id=f"step-{index}",
        index=0,
        token_ids=[(7 * index + position) % vocab for position in range(kind.length)],
        num_prompt_tokens=kind.length,
        params=SamplingParams(temperature=0),
        seed=0,
        max_tokens=1,
        cache=engine.cache.new_sequence(),
        metrics=RequestMetrics(arrival_s=0.0),
    )
