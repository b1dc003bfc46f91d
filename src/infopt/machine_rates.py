"""Memory bandwidth and FLOP/s of the machine, as measured.

Published peaks describe chips; a virtual machine with two cores of one has its own limits, so a
roofline here stands on measurements.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from infopt.errors import MeasurementError
from infopt.hardware import cpu_caches, usable_cores

_MIN_WORKING_SET = 256 * 2**20
_MAX_WORKING_SET = 1024 * 2**20
_ROW_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class RateMeasurement:
    """A measured rate.

    Attributes:
        quantity: ``memory_bytes_per_s``, ``matmul_flops_per_s`` or ``amount_per_s``.
        samples: One rate per repeat, in units per second.
        device: Device it was measured on.
        num_threads: Compute threads (CPU).
        detail: What was run: sizes and types.
    """

    quantity: str
    samples: tuple[float, ...]
    device: str
    num_threads: int
    detail: dict[str, Any]

    @property
    def median(self) -> float:
        """Median of the repeats."""
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        """Highest of the repeats: what the machine can do when nothing else disturbs it."""
        return max(self.samples)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a result record."""
        return {
            "quantity": self.quantity,
            "median": self.median,
            "best": self.best,
            "samples": list(self.samples),
            "device": self.device,
            "num_threads": self.num_threads,
            **self.detail,
        }


def measure_memory_bandwidth(
    num_threads: int | None = None,
    *,
    device: str = "cpu",
    working_set_bytes: int | None = None,
    repeats: int = 5,
) -> RateMeasurement:
    """Measure how fast a large matrix is read.

    A float32 matrix-vector product and a sum read each value once and compute next to nothing; the
    faster of the two counts, since a BLAS that is not tuned for a processor can take twice as long
    as its memory. The matrix is larger than the last-level cache where 1 GiB is enough for that;
    ``exceeds_cache`` tells. A processor with a very large shared cache can serve a small model
    faster than this figure.

    Args:
        num_threads: Compute threads; default is the usable cores.
        device: ``cpu`` or a CUDA device.
        working_set_bytes: Size of the matrix; default is twice the last-level cache, from 256 MiB
            to 1 GiB. Pass a model's own size to get the bandwidth it can hope for.
        repeats: Timed repeats, after one that is not.
    """
    llc = max(cpu_caches().values(), default=0) if device == "cpu" else 0
    if working_set_bytes is None:
        working_set_bytes = min(max(2 * llc, _MIN_WORKING_SET), _MAX_WORKING_SET)
    num_rows = max(working_set_bytes // (4 * _ROW_LENGTH), 1)
    matrix = torch.ones(num_rows, _ROW_LENGTH, device=device)
    vector = torch.ones(_ROW_LENGTH, device=device)
    threads = num_threads or usable_cores()
    readers = {"mv": lambda: torch.mv(matrix, vector), "sum": matrix.sum}
    times = {name: _time(reader, threads, device, repeats) for name, reader in readers.items()}
    fastest = min(times, key=lambda name: min(times[name]))
    num_bytes = 4 * num_rows * _ROW_LENGTH
    return RateMeasurement(
        quantity="memory_bytes_per_s",
        samples=tuple(num_bytes / s for s in times[fastest]),
        device=device,
        num_threads=threads,
        detail={
            "working_set_bytes": num_bytes,
            "exceeds_cache": num_bytes > llc,
            "reader": fastest,
        },
    )


def measure_matmul_flops(
    dtype: torch.dtype = torch.float32,
    num_threads: int | None = None,
    *,
    device: str = "cpu",
    size: int = 2048,
    repeats: int = 5,
    prepare: Callable[[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]] | None = None,
) -> RateMeasurement:
    """Measure the FLOP/s of a square matrix product, two per multiply-add.

    Args:
        dtype: Compute type.
        num_threads: Compute threads; default is the usable cores.
        device: ``cpu`` or a CUDA device.
        size: Rows and columns; larger sizes suit GPUs.
        repeats: Timed repeats, after one that is not.
        prepare: Takes the right matrix and returns what multiplies with it; default `torch.mm`.
    """
    left = torch.ones(size, size, dtype=dtype, device=device)
    right = torch.ones(size, size, dtype=dtype, device=device)
    threads = num_threads or usable_cores()
    multiply = prepare(right) if prepare else lambda x: torch.mm(x, right)
    seconds = _time(lambda: multiply(left), threads, device, repeats)
    return RateMeasurement(
        quantity="matmul_flops_per_s",
        samples=tuple(2 * size**3 / s for s in seconds),
        device=device,
        num_threads=threads,
        detail={"dtype": str(dtype).removeprefix("torch."), "size": size},
    )


def measure_rate(
    function: Callable[[], object],
    amount: float,
    num_threads: int | None = None,
    *,
    device: str = "cpu",
    repeats: int = 5,
) -> RateMeasurement:
    """Measure how fast a function does an amount of work.

    Args:
        function: Called ``repeats + 1`` times; the first call is not timed.
        amount: What one call does: FLOPs, bytes, ...
        num_threads: Compute threads; default is the usable cores.
        device: Where it computes; it is synchronised around every call.
        repeats: Timed repeats.
    """
    threads = num_threads or usable_cores()
    seconds = _time(function, threads, device, repeats)
    return RateMeasurement(
        "amount_per_s", tuple(amount / s for s in seconds), device, threads, {"amount": amount}
    )


@functools.cache
def memory_bandwidth(device: str = "cpu", num_threads: int | None = None) -> float:
    """Return the memory bandwidth in bytes/s, measured once per process."""
    return measure_memory_bandwidth(num_threads, device=device).best


@functools.cache
def matmul_flops(
    dtype: torch.dtype = torch.float32, device: str = "cpu", num_threads: int | None = None
) -> float:
    """Return the matrix-product FLOP/s of a type, measured once per process."""
    return measure_matmul_flops(dtype, num_threads, device=device).best


def _time(
    function: Callable[[], object], num_threads: int, device: str, repeats: int
) -> list[float]:
    """Return seconds per call; the first call is not counted, and the thread count is restored."""
    if repeats < 1:
        raise MeasurementError(
            f"repeats must be at least 1, got {repeats}.", field="repeats", value=repeats
        )
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        function()
        return [_time_once(function, device) for _ in range(repeats)]
    finally:
        torch.set_num_threads(before)


def _time_once(function: Callable[[], object], device: str) -> float:
    synchronize = (lambda: None) if device == "cpu" else (lambda: torch.cuda.synchronize(device))
    synchronize()
    start = time.perf_counter()
    function()
    synchronize()
    return time.perf_counter() - start
