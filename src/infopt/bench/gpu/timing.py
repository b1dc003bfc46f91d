"""Times launches on a device: replays of a CUDA graph where one can be captured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

LAUNCHES = 20
"""Launches in one replay: the time between two of them counts, the start of the first does not."""


def seconds_per_call(
    function: Callable[[], object], device: torch.device, repeats: int = 5
) -> tuple[float, str]:
    """Return the median seconds of a call, and how it was timed.

    ``graph``: without the time Python needs for a launch. ``events``: with it, where a capture
    fails. ``clock``: on a CPU.
    """
    function()
    if device.type != "cuda":
        return statistics.median(_clock(function) for _ in range(repeats)), "clock"
    try:
        graph = _capture(function)
    except RuntimeError:
        torch.cuda.synchronize()
        return statistics.median(_events(function, LAUNCHES) for _ in range(repeats)), "events"
    graph.replay()
    times = [_events(graph.replay, 1) / LAUNCHES for _ in range(repeats)]
    return statistics.median(times), "graph"


def _capture(function: Callable[[], object]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            function()
    return graph


def _events(function: Callable[[], object], count: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / count


def _clock(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
