"""How fast a decode step is over compressed keys and values, against pages in the compute type.

    python -m infopt.bench.kv_pages int8 int4 auto+snapkv:0.25 --num-cached 3000 --num-seqs 16

One engine for each way of keeping keys and values (`kv_capacity_run.parse_way`) decodes one token
for each of ``num_seqs`` sequences with ``num_cached`` tokens behind them, again and again; the arms
take turns. First the layers alone, then whole steps of requests that were read and, where the way
says so, evicted from. Each line is the median step and its ratio to ``auto`` (above 1 is faster),
with 95 % intervals; the last line is the same as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import torch

from infopt import __version__
from infopt.bench.kv_capacity_run import parse_way
from infopt.bench.kv_steps import LayerStep, RunningRequests
from infopt.bench.paired import PairedResult, run_paired
from infopt.hardware import fingerprint
from infopt.llm import LLM

REFERENCE = "auto"
LAYERS, STEPS = "layers", "whole steps"

_NUM_WARMUP = 2


def measure(
    model: str,
    ways: Sequence[str],
    *,
    num_seqs: int,
    num_cached: int,
    repeats: int,
    memory_gib: float,
    dtype: str = "bfloat16",
    num_threads: int | None = None,
) -> Iterator[tuple[str, PairedResult]]:
    """Measure a decode step with each way of keeping keys and values, in turns.

    Args:
        model: Registry slug or path.
        ways: Ways beside ``auto``, as `parse_way` reads them.
        num_seqs: Sequences of the step.
        num_cached: Tokens behind each of them.
        repeats: Measured rounds.
        memory_gib: KV memory of each engine.
        dtype: Compute type.
        num_threads: Compute threads.

    Yields:
        What was timed, and rates (steps per second) by way with ratios to ``auto``.
    """
    num_steps = repeats + _NUM_WARMUP
    shared = {
        "dtype": dtype,
        "kv_cache_memory_gib": memory_gib,
        "max_num_seqs": num_seqs,
        "enable_prefix_caching": False,
        "preemption": "swap",
        "num_threads": num_threads,
    }
    with ExitStack() as stack:
        engines = {}
        for way in (REFERENCE, *ways):
            llm = LLM(model, **shared, **parse_way(way))
            stack.callback(llm.close)
            engines[way] = llm.engine
        makers: dict[str, Callable[[Any], LayerStep | RunningRequests]] = {
            LAYERS: lambda engine: LayerStep(engine, num_seqs, num_cached),
            STEPS: lambda engine: RunningRequests(engine, num_seqs, num_cached, num_steps),
        }
        for name, make in makers.items():
            steps = {way: make(engine) for way, engine in engines.items()}
            yield name, _in_turns(steps, repeats)
            for step in steps.values():
                step.close()


def _in_turns(steps: Mapping[str, LayerStep | RunningRequests], repeats: int) -> PairedResult:
    arms = {way: _rate_of(step) for way, step in steps.items()}
    return run_paired(arms, REFERENCE, repeats, num_warmup=_NUM_WARMUP)


def _rate_of(step: LayerStep | RunningRequests) -> Callable[[], float]:
    return lambda: 1.0 / step.seconds()


def _report(result: PairedResult) -> str:
    lines = []
    for name in result.samples:
        rate = result.interval(name)
        ratio = result.ratios.get(name)
        beside = "reference" if ratio is None else f"{ratio.median:.2f}x [{ratio.low:.2f}, "
        beside += "" if ratio is None else f"{ratio.high:.2f}] {ratio.verdict}"
        steps = (1e3 / rate.estimate, 1e3 / rate.high, 1e3 / rate.low)
        lines.append(f"{name:17s} {steps[0]:7.2f} ms [{steps[1]:.2f}, {steps[2]:.2f}]  {beside}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m infopt.bench.kv_pages",
        description="Times a decode step over compressed keys and values.",
    )
    parser.add_argument("ways", nargs="+", help="int8, auto+snapkv:0.25, int8+snapkv:0.25, ...")
    parser.add_argument("--model", default="smollm2-135m-instruct-q4_1")
    parser.add_argument("--dtype", default="bfloat16", help="compute type")
    parser.add_argument("--num-seqs", type=int, default=16)
    parser.add_argument("--num-cached", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--memory-gib", type=float, default=1.5)
    parser.add_argument("--threads", type=int, default=None)
    given = parser.parse_args(arguments)
    settings: dict[str, Any] = {
        "num_seqs": given.num_seqs,
        "num_cached": given.num_cached,
        "repeats": given.repeats,
        "memory_gib": given.memory_gib,
        "dtype": given.dtype,
    }
    found = {}
    with torch.inference_mode():
        measured = measure(given.model, given.ways, **settings, num_threads=given.threads)
        for name, result in measured:
            print(f"{name}\n{_report(result)}", flush=True)
            found[name] = result.to_dict()
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "infopt": __version__,
        "model": given.model,
        "hardware": fingerprint(),
    }
    print(json.dumps(about | settings | found))


if __name__ == "__main__":
    main()
