"""How fast a decode step is over quantized KV pages, against pages in the compute type.

    python -m infopt.bench.kv_pages --dtypes int8,int4 --num-cached 3000 --num-seqs 16

One engine per format decodes one token for each of ``num_seqs`` sequences with ``num_cached``
tokens behind them, again and again; the arms take turns. Pages hold random numbers: the time of a
step does not depend on them. Each line is the median step and its ratio to ``auto`` (above 1 is
faster), with 95 % intervals; the last line is the same as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch

from infopt.bench.paired import PairedResult, run_paired
from infopt.engine.engine import Engine
from infopt.engine.scheduler import ScheduledSequence, StepPlan
from infopt.engine.sequence import Sequence as EngineSequence
from infopt.errors import MeasurementError
from infopt.llm import LLM
from infopt.outputs import RequestMetrics
from infopt.sampling_params import SamplingParams

REFERENCE = "auto"
_HIGHEST_BYTE = 57
"""Random bytes below it are codes of any format, and as float16 positive numbers below 1."""


class DecodeStep:
    """A decode step over filled pages, which can be repeated: it writes the same slots.

    Args:
        engine: Idle.
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


def measure(
    model: str,
    dtypes: Sequence[str],
    *,
    num_seqs: int,
    num_cached: int,
    repeats: int,
    memory_gib: float,
    dtype: str = "bfloat16",
    num_threads: int | None = None,
) -> PairedResult:
    """Measure a decode step with each format, in turns.

    Args:
        model: Registry slug or path.
        dtypes: Values of ``kv_cache_dtype`` beside ``auto``.
        num_seqs: Sequences of the step.
        num_cached: Tokens behind each of them.
        repeats: Measured rounds.
        memory_gib: KV memory of each engine.
        dtype: Compute type.
        num_threads: Compute threads.

    Returns:
        Seconds per step by format, and ratios of speed to ``auto``.
    """
    with ExitStack() as stack:
        arms: dict[str, Callable[[], float]] = {}
        for kind in (REFERENCE, *dtypes):
            llm = LLM(
                model,
                dtype=dtype,
                kv_cache_dtype=kind,
                kv_cache_memory_gib=memory_gib,
                max_num_seqs=num_seqs,
                enable_prefix_caching=False,
                num_threads=num_threads,
            )
            stack.callback(llm.close)
            step = DecodeStep(llm.engine, num_seqs, num_cached)
            stack.callback(step.close)
            arms[kind] = _rate_of(step)
        return run_paired(arms, REFERENCE, repeats, num_warmup=2)


def _rate_of(step: DecodeStep) -> Callable[[], float]:
    return lambda: 1.0 / step.seconds()


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
    cache, chunk = engine.cache, engine.config.max_num_batched_tokens
    for end in [*range(chunk, num_cached, chunk), num_cached, num_cached + 1]:
        if not cache.allocate(sequence.cache, end):
            raise MeasurementError(
                f"The KV pools do not hold the sequences: one of {num_cached} tokens stops at "
                f"{sequence.cache.num_tokens}.",
                field="memory_gib",
                value=engine.config.kv_cache_memory_gib,
                remedy="Raise --memory-gib, or measure fewer or shorter sequences.",
            )
        if end <= num_cached:
            cache.commit(sequence.cache, sequence.token_ids, end)


def _fill(engine: Engine) -> None:
    store = engine.runner.store
    store.buffer.normal_()
    if store.quantized is not None:
        store.quantized.buffer.random_(0, _HIGHEST_BYTE)


def _report(result: PairedResult) -> str:
    lines = []
    for name in result.samples:
        rate = result.interval(name)
        ratio = result.ratios.get(name)
        beside = "reference" if ratio is None else f"{ratio.median:.2f}x [{ratio.low:.2f}, "
        beside += "" if ratio is None else f"{ratio.high:.2f}] {ratio.verdict}"
        steps = (1e3 / rate.estimate, 1e3 / rate.high, 1e3 / rate.low)
        lines.append(f"{name:9s} {steps[0]:7.2f} ms [{steps[1]:.2f}, {steps[2]:.2f}]  {beside}")
    return "\n".join([*lines, json.dumps(result.to_dict())])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m infopt.bench.kv_pages",
        description="Times a decode step over quantized KV pages.",
    )
    parser.add_argument("--model", default="smollm2-135m-instruct-q4_1")
    parser.add_argument("--dtypes", default="int8,int4,int2,fp8_e4m3")
    parser.add_argument("--dtype", default="bfloat16", help="compute type")
    parser.add_argument("--num-seqs", type=int, default=16)
    parser.add_argument("--num-cached", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--memory-gib", type=float, default=2.5)
    parser.add_argument("--threads", type=int, default=None)
    given = parser.parse_args(arguments)
    with torch.inference_mode():
        result = measure(
            given.model,
            given.dtypes.split(","),
            num_seqs=given.num_seqs,
            num_cached=given.num_cached,
            repeats=given.repeats,
            memory_gib=given.memory_gib,
            dtype=given.dtype,
            num_threads=given.threads,
        )
    print(_report(result))


if __name__ == "__main__":
    main()
