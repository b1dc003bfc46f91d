"""An engine in a process of its own, on cores of its own.

with Instance(order, cores=[0]) as instance:
instance.wait_until_ready()
result = instance.ask("run")
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from types import TracebackType
from typing import Any

from infopt.config import EngineConfig
from infopt.errors import MeasurementError, WeightFormatError
from infopt.experiments.slice_spec import SliceSpec

_WORKER = "infopt.experiments.power.worker"
_START_S, _ANSWER_S, _STOP_S = 600.0, 900.0, 10.0


def usable_core_ids(num_threads: int | None) -> list[int]:
    """Return the cores that a job may use, at most ``num_threads`` of them."""
    from infopt.hardware import usable_cores

    most = usable_cores() if num_threads is None else min(num_threads, usable_cores())
    has_mask = hasattr(os, "sched_getaffinity")
    return (sorted(os.sched_getaffinity(0)) if has_mask else list(range(most)))[:most]


def make_order(
    spec: SliceSpec,
    slug: str,
    config: EngineConfig,
    *,
    part: tuple[int, int] = (0, 1),
    has_meter: bool = True,
) -> dict[str, Any]:
    """Return what a worker is told when it starts.

    Args:
        spec: The slice: workload, seeds, objective, energy.
        slug: The candidate.
        config: How the engine runs.
        part: Place and number of the processes that share the requests.
        has_meter: Whether it measures its own energy.
    """
    return {
        "slug": slug,
        "config": config.to_dict(),
        "workload": dict(spec.workloads["load"]),
        "seeds": list(spec.seeds),
        "slo": spec.slo,
        "energy": dict(spec.energy) if has_meter else None,
        "models_file": spec.models_file,
        "part": part,
    }


class Instance:
    """A running engine.

    Args:
        order: From `make_order`.
        cores: The cores that it is pinned to, where the system can pin.

    Attributes:
        started_s: When the process was started, on the monotonic clock.
        num_cores: How many cores it has.
    """

    def __init__(self, order: Mapping[str, Any], cores: Sequence[int]) -> None:
        """Start the process; it is not ready yet."""
        self._slug, self.num_cores = str(order["slug"]), len(cores)
        self._connection, theirs = Pipe()
        self.started_s = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", _WORKER, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._connection.send({**order, "cores": list(cores)})

    def __enter__(self) -> Instance:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def wait_until_ready(self) -> dict[str, float]:
        """Wait until it is loaded and return its state (see `ask`).

        Raises:
            WeightFormatError: The model does not come in its format.
            MeasurementError: It failed, ended, or took too long.
        """
        return self._answer(_START_S)

    def begin(self, what: str) -> None:
        """Ask for something and do not wait: ``run``, ``first`` (a lone request) or ``state``."""
        self._connection.send((what,))

    def finish(self) -> Any:
        """Return the answer to `begin`: a `LoadResult`, that and a state, or a state.

        A state has the clock ``at_s``, CPU seconds of the process ``cpu_s``, and ``weights_bytes``.
        """
        return self._answer(_ANSWER_S)

    def ask(self, what: str) -> Any:
        """Ask for something and wait for it."""
        self.begin(what)
        return self.finish()

    def stop(self) -> None:
        """End the process; one that does not go is killed."""
        self._connection.close()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _answer(self, timeout_s: float) -> Any:
        if not self._connection.poll(timeout_s):
            raise self._failed(f"gave no answer within {timeout_s:g} s", None)
        try:
            kind, value = self._connection.recv()
        except (EOFError, ConnectionResetError):
            code = self.process.wait()
            raise self._failed(f"ended with exit code {code}", code) from None
        if kind != "failed":
            return value
        message, field, is_left_out = value
        if is_left_out:
            raise WeightFormatError(message, field=field)
        raise MeasurementError(f"{self._slug}: {message}", field=field)

    def _failed(self, what: str, value: object) -> MeasurementError:
        return MeasurementError(
            f"The process of {self._slug} {what}.",
            field="power",
            value=value,
            remedy="The job's log has what it printed; it may have run out of memory.",
        )
