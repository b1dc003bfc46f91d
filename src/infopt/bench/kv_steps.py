"""Decode steps over long contexts, made to be repeated: the layers alone, and requests that run.

`LayerStep` gives sequences the pages of a long past without computing it, and runs the layers over
them again and again. `RunningRequests` reads the prompts of real requests, evictions included, and
then takes one decode step at a time.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from infopt.cache.compaction import KeptRows
from infopt.cache.memory_model import rows_kept
from infopt.engine.engine import Engine
from infopt.engine.sequence import Sequence as EngineSequence
from infopt.engine.step_plan import ScheduledSequence, StepPlan
from infopt.errors import MeasurementError
from infopt.outputs import RequestMetrics
from infopt.sampling_params import SamplingParams

_HIGHEST_BYTE = 57
"""Random bytes below it are codes of any format, and as float16 positive numbers below 1."""


class LayerStep:
    """The layers of a decode step over filled pages; every run writes the same slots.

    Pages hold random numbers: the time of a step does not depend on them.

    Args:
        engine: Idle. Where it evicts by default, the sequences have lost rows.
        num_seqs: Sequences.
        num_cached: Tokens of each that count as computed.

    Raises:
        MeasurementError: If the pools do not hold them.
    """

    def __init__(self, engine: Engine, num_seqs: int, num_cached: int) -> None:
        """Take pages as a run would: chunk by chunk, so that old ones are quantized on the way."""
        self._engine = engine
        sequences = [_sequence(engine, index, num_cached + 1) for index in range(num_seqs)]
        for sequence in sequences:
            _grow(engine, sequence, num_cached)
            _evict(engine, sequence)
            _allocate(engine, sequence, num_cached + 1)
        _fill(engine)
        self._plan = StepPlan([ScheduledSequence(s, num_cached, 1) for s in sequences])

    def seconds(self) -> float:
        """Run the layers once and return how long they took."""
        runner = self._engine.runner
        ctx = runner.build(self._plan, list(range(len(self._plan.scheduled))))
        start = time.perf_counter()
        runner.hidden(ctx)
        return time.perf_counter() - start

    def close(self) -> None:
        """Give the pages back."""
        for item in self._plan.scheduled:
            self._engine.cache.free(item.sequence.cache)


class RunningRequests:
    """Requests whose prompts have been read, and which all decode from now on.

    Args:
        engine: Idle.
        num_seqs: Requests.
        num_cached: Tokens of each prompt, drawn at random.
        num_steps: Decode steps that will be taken.

    Raises:
        MeasurementError: If not all of them decode together.
    """

    def __init__(self, engine: Engine, num_seqs: int, num_cached: int, num_steps: int) -> None:
        """Read all prompts."""
        self._engine, self._num_seqs = engine, num_seqs
        num_reading = most_reading_steps(num_seqs, num_cached, engine.config.max_num_batched_tokens)
        params = SamplingParams(
            temperature=0, max_tokens=num_reading + num_steps, ignore_eos=True, detokenize=False
        )
        rng = np.random.default_rng(0)
        vocab = engine.runner.model.config.num_real_tokens
        for index in range(num_seqs):
            prompt = rng.integers(0, vocab, num_cached).tolist()
            engine.add_request(f"decode-{index}", prompt, params)
        for _ in range(num_reading):
            engine.step()
            if self._num_decoding() == num_seqs:
                return
        raise self._not_together()

    def seconds(self) -> float:
        """Take a decode step and return how long it took: planning, layers, sampling and all.

        Raises:
            MeasurementError: If not all of them decode any more.
        """
        if self._num_decoding() < self._num_seqs:
            raise self._not_together()
        start = time.perf_counter()
        self._engine.step()
        return time.perf_counter() - start

    def close(self) -> None:
        """End the requests."""
        self._engine.abort_all()

    def _num_decoding(self) -> int:
        running = self._engine.scheduler.running
        return sum(s.cache.num_tokens >= s.num_prompt_tokens for s in running)

    def _not_together(self) -> MeasurementError:
        return MeasurementError(
            f"{self._num_decoding()} of {self._num_seqs} requests decode together.",
            field="memory_gib",
            value=self._engine.config.kv_cache_memory_gib,
            remedy="Raise --memory-gib, or measure fewer or shorter sequences.",
        )


def most_reading_steps(num_seqs: int, num_cached: int, max_num_batched_tokens: int) -> int:
    """Return the steps in which so many prompts are read, others decoding meanwhile, and one more.

    Raises:
        MeasurementError: A step has no room for so many sequences.
    """
    room = max_num_batched_tokens - num_seqs
    if room < 1:
        raise MeasurementError(
            f"max_num_batched_tokens={max_num_batched_tokens} leaves no room to read a prompt "
            f"beside {num_seqs} sequences.",
            field="num_seqs",
            value=num_seqs,
        )
    return num_seqs * -(-num_cached // room) + 1


def _sequence(engine: Engine, index: int, length: int) -> EngineSequence:
    return EngineSequence(
        seq_id=index,
        request_id=f"step-{index}",
        index=0,
        token_ids=[5] * length,
        num_prompt_tokens=length,
        params=SamplingParams(temperature=0),
        seed=0,
        max_tokens=1,
        cache=engine.cache.new_sequence(),
        metrics=RequestMetrics(arrival_s=0.0),
    )


def _grow(engine: Engine, sequence: EngineSequence, num_cached: int) -> None:
    chunk = engine.config.max_num_batched_tokens
    for end in [*range(chunk, num_cached, chunk), num_cached]:
        _allocate(engine, sequence, end)
        engine.cache.commit(sequence.cache, sequence.token_ids, end)


def _allocate(engine: Engine, sequence: EngineSequence, num_tokens: int) -> None:
    if not engine.cache.allocate(sequence.cache, num_tokens):
        raise MeasurementError(
            f"The KV pools do not hold the sequences: one of {num_tokens} tokens stops at "
            f"{sequence.cache.num_tokens}.",
            field="memory_gib",
            value=engine.config.kv_cache_memory_gib,
            remedy="Raise --memory-gib, or measure fewer or shorter sequences.",
        )


def _evict(engine: Engine, sequence: EngineSequence) -> None:
    """Let go of as many rows as the engine's default does; it does not matter which."""
    cache = sequence.cache
    num_kept = rows_kept(cache.num_tokens, engine.config.kv_eviction)
    if num_kept == cache.num_tokens:
        return
    num_heads = engine.runner.model.config.num_kv_heads
    for index, group in enumerate(engine.cache.layout.groups):
        if group.window is None:
            rows = torch.arange(num_kept).expand(len(group.layers), num_heads, -1)
            move = engine.cache.compact(cache, index, KeptRows(rows), sequence.token_ids)
            engine.runner.store.move_rows(move)


def _fill(engine: Engine) -> None:
    store = engine.runner.store
    store.buffer.normal_()
    if store.quantized is not None:
        store.quantized.buffer.random_(0, _HIGHEST_BYTE)
