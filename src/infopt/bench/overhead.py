"""What serving costs: the server beside the engine alone, and its CPU time per token.

    python -m infopt.bench.overhead --out docs/measurements/serving-cpu.json

Two arms take turns on equal prompts, lengths and places, greedy, without a prefix cache:
``offline`` calls ``LLM.generate``, ``server`` is ``infopt serve`` with `CONCURRENCY` streams. Both
compute on one thread less than there are cores, and may run on all of them; the client of the
streams reads bare sockets and has the last core to itself. A run's rate is its output tokens by the
time from the first request to the end of the last answer.

Serving CPU per token is what the server's process adds to the engine, in CPU time (which others on
the machine disturb less than wall time), over one run. It is the sum of

- the event loop's thread: HTTP, JSON, sockets;
- the thread that encodes prompts;
- the model thread outside of ``Engine.step``: handing over requests and tokens, metrics;

by the number of output tokens, as ``infopt_serving_cpu_seconds_total`` and
``infopt_generated_tokens_total`` count them. What requests cost once is part of it, and weighs less
the longer the answers are. ``outside_steps`` is the same from the other side, where one thread
computes: user and system time of the process, less the model thread's CPU time within steps.

Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infopt import __version__
from infopt.bench.overhead_client import StreamCount, stream_all
from infopt.bench.overhead_offline import OfflineEngine
from infopt.bench.paired import PairedResult, run_paired
from infopt.bench.raw_http import Address
from infopt.bench.server_process import read_metrics, serve
from infopt.bench.stats import bootstrap_interval
from infopt.errors import MeasurementError
from infopt.hardware import fingerprint
from infopt.results import write_json

DEFAULT_MODEL = "smollm2-135m-instruct-q4_1"
CONCURRENCY = 8
PATH = "/v1/completions"

TARGET_RATIO = 0.90
"""Least share of the offline engine's rate that a server should keep."""

TARGET_CPU_US = 150.0
"""Most CPU microseconds per token that serving should take."""


@dataclass(frozen=True, slots=True)
class OverheadOptions:
    """What is measured.

    Attributes:
        model: Slug or folder.
        dtype: Compute type of both arms.
        repeats: Pairs.
        num_requests: Requests of one run.
        prompt_tokens: Length of each prompt.
        output_tokens: Length of each answer.
    """

    model: str = DEFAULT_MODEL
    dtype: str = "bfloat16"
    repeats: int = 8
    num_requests: int = 24
    prompt_tokens: int = 64
    output_tokens: int = 64

    def prompts(self) -> list[list[int]]:
        """Return the prompts, token ids that every model has."""
        rng = random.Random(0)
        return [
            [rng.randint(5, 250) for _ in range(self.prompt_tokens)]
            for _ in range(self.num_requests)
        ]

    def engine(self) -> dict[str, Any]:
        """Return the options of both engines."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "num_threads": max(num_cores() - 1, 1),
            "max_num_seqs": CONCURRENCY,
            "max_model_len": self.prompt_tokens + self.output_tokens,
            "enable_prefix_caching": False,
        }

    def server_arguments(self) -> list[str]:
        """Return the same as arguments of ``infopt serve``."""
        words = [self.model, "--no-enable-prefix-caching"]
        for name, value in self.engine().items():
            if name not in ("model", "enable_prefix_caching"):
                words += [f"--{name.replace('_', '-')}", str(value)]
        return words

    def payloads(self) -> list[bytes]:
        """Return the bodies of the requests."""
        limits = {"max_tokens": self.output_tokens, "ignore_eos": True}
        options = {"temperature": 0, "stream": True} | limits
        return [json.dumps({"prompt": prompt} | options).encode() for prompt in self.prompts()]


@dataclass(slots=True)
class ServerArm:
    """Runs the streams and notes the server's CPU time.

    Attributes:
        address: The server.
        options: What is measured.
        serving_us: Serving CPU microseconds per token, by run.
        outside_steps_us: The process' CPU time outside of steps in the same unit, by run.
        step_us: CPU microseconds per token of the model thread within steps, by run.
    """

    address: Address
    options: OverheadOptions
    serving_us: list[float] = field(default_factory=list)
    outside_steps_us: list[float] = field(default_factory=list)
    step_us: list[float] = field(default_factory=list)

    def tokens_per_s(self) -> float:
        """Run once.

        Raises:
            MeasurementError: If the server has not made the tokens that were asked for.
        """
        before = asyncio.run(read_metrics(self.address))
        count = self._stream()
        after = asyncio.run(read_metrics(self.address))
        spent = {name: after[name] - before[name] for name in after if name in before}
        num_tokens = spent["infopt_generated_tokens_total"]
        if num_tokens != self.options.num_requests * self.options.output_tokens:
            raise MeasurementError(f"The server made {num_tokens:g} tokens.", value=num_tokens)
        step_s = spent["infopt_step_cpu_seconds_total"]
        per_token = 1e6 / num_tokens
        self.step_us.append(step_s * per_token)
        self.serving_us.append(spent["infopt_serving_cpu_seconds_total"] * per_token)
        process_s = spent.get("process_cpu_seconds_total")
        if process_s is not None and self.options.engine()["num_threads"] == 1:
            self.outside_steps_us.append((process_s - step_s) * per_token)
        return num_tokens / count.duration_s

    def _stream(self) -> StreamCount:
        payloads = self.options.payloads()
        return stream_all(self.address, PATH, payloads, concurrency=CONCURRENCY)


@dataclass(slots=True)
class OverheadResult:
    """What was measured.

    Attributes:
        rates: Tokens per second of both arms, and the paired ratio.
        server: CPU times.
    """

    rates: PairedResult
    server: ServerArm

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; the first run of each CPU time is the warm-up and left out."""
        return {
            "tokens_per_s": self.rates.to_dict(),
            "serving_cpu_us_per_token": _interval(self.server.serving_us[1:]),
            "outside_steps_cpu_us_per_token": _interval(self.server.outside_steps_us[1:]),
            "step_cpu_us_per_token": _interval(self.server.step_us[1:]),
        }

    def describe(self) -> str:
        """Return the result in words."""
        ratio, cpu = self.rates.ratios["server"], _interval(self.server.serving_us[1:])
        assert cpu is not None
        return (
            f"server / offline = {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of "
            f"{self.rates.interval('offline').estimate:.4g} tokens/s (target {TARGET_RATIO:.2f})\n"
            f"serving takes {cpu['median']:.0f} [{cpu['low']:.0f}, {cpu['high']:.0f}] us of CPU "
            f"per token (target {TARGET_CPU_US:.0f})"
        )


def measure(options: OverheadOptions) -> OverheadResult:
    """Run both arms in turn.

    Raises:
        MeasurementError: On a system without processor affinity, or if an arm fails.
    """
    settings = {
        "engine": options.engine(),
        "prompts": options.prompts(),
        "max_tokens": options.output_tokens,
    }
    offline = OfflineEngine(settings)
    try:
        with serve(*options.server_arguments()) as server, _on_last_core():
            arm = ServerArm(server.address, options)
            arms = {"offline": offline.tokens_per_s, "server": arm.tokens_per_s}
            return OverheadResult(run_paired(arms, "offline", options.repeats), arm)
    finally:
        offline.stop()


def num_cores() -> int:
    """Return the cores that this process may use."""
    return len(_affinity())


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write a record."""
    usual = OverheadOptions()
    parser = argparse.ArgumentParser(
        prog="infopt.bench.overhead", description="What serving costs."
    )
    parser.add_argument("--model", default=usual.model)
    parser.add_argument("--dtype", default=usual.dtype)
    parser.add_argument("--repeats", type=int, default=usual.repeats)
    parser.add_argument("--requests", type=int, default=usual.num_requests)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    given = parser.parse_args(arguments)
    options = OverheadOptions(
        given.model, given.dtype, repeats=given.repeats, num_requests=given.requests
    )
    result = measure(options)
    print(result.describe())
    if given.out is not None:
        write_json(given.out, _record(options, result))


def _record(options: OverheadOptions, result: OverheadResult) -> dict[str, Any]:
    engine = options.engine()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "infopt": __version__,
        "engine": engine,
        "hardware": fingerprint(),
        "concurrency": CONCURRENCY,
        "num_requests": options.num_requests,
        "prompt_tokens": options.prompt_tokens,
        "output_tokens": options.output_tokens,
        **result.to_dict(),
    }


def _interval(samples: Sequence[float]) -> dict[str, Any] | None:
    """Return the median with its interval, or None without samples."""
    if not samples:
        return None
    found = bootstrap_interval(samples)
    return {
        "median": found.estimate,
        "low": found.low,
        "high": found.high,
        "samples": list(samples),
    }


@contextlib.contextmanager
def _on_last_core() -> Any:
    """Keep this process on the last of its cores; processes it has started keep all of them."""
    cores = _affinity()
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _affinity() -> set[int]:
    if not hasattr(os, "sched_getaffinity"):
        raise MeasurementError(
            "This system cannot keep a process on a core.", remedy="Measure on Linux."
        )
    return os.sched_getaffinity(0)


if __name__ == "__main__":
    main()
