"""The process of an `Instance`: one engine on cores of its own.

    python -m infopt.experiments.power.worker DESCRIPTOR

Orders come through an inherited pipe, answers go back the same way; the process ends when the pipe
does, so it never outlives the one that started it. Nothing heavy is imported before the process is
pinned: thread pools are made for the cores that are there when they start.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infopt.experiments.arms import Arm


def main() -> None:
    """Load what the first message asks for and answer until the pipe ends."""
    connection = Connection(int(sys.argv[1]))
    try:
        order: Mapping[str, Any] = connection.recv()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, order["cores"])
        serve(connection, order)
    except (EOFError, BrokenPipeError):
        return  # whoever started this is gone


def serve(connection: Connection, order: Mapping[str, Any]) -> None:
    """Load the engine and do what is asked for.

    Args:
        connection: Its peer is an `Instance`.
        order: See `Instance`.
    """
    from infopt.errors import ConfigError, InfoptError
    from infopt.experiments.slices import is_left_out

    try:
        arm = _load(order)
        connection.send(("ready", _state(arm)))
        while True:
            connection.send(("done", _do(arm, *connection.recv())))
    except InfoptError as error:
        left_out = isinstance(error, ConfigError) and is_left_out(error)
        connection.send(("failed", (error.message, error.field, left_out)))


def _load(order: Mapping[str, Any]) -> Arm:
    from infopt.bench.slo import SLO
    from infopt.config import EngineConfig
    from infopt.experiments.arms import Arm, make_requests
    from infopt.experiments.energy import meter_of
    from infopt.models.registry import load_registry_file

    if order["models_file"]:
        load_registry_file(order["models_file"])
    energy = order["energy"]
    arm = Arm(
        order["slug"],
        EngineConfig.from_dict(order["config"]),
        load="closed",
        slo=SLO.from_spec(order["slo"]) if order["slo"] else None,
        meter=None if energy is None else lambda device: meter_of(energy, device),
    )
    place, count = order["part"]
    lists = [make_requests(arm.llm, order["workload"], seed) for seed in order["seeds"]]
    arm.requests = [requests[place::count] for requests in lists]
    return arm


def _do(arm: Arm, what: str) -> Any:
    if what == "run":
        arm.run()
        return arm.results[-1]
    if what == "first":  # one request alone: the first answer after a start
        arm.requests = [requests[:1] for requests in arm.requests]
        arm.run()
        return arm.results[-1], _state(arm)
    assert what == "state", what
    return _state(arm)


def _state(arm: Arm) -> dict[str, float]:
    return {
        "at_s": time.perf_counter(),
        "cpu_s": time.process_time(),
        "weights_bytes": float(arm.llm.stats()["memory"]["weights_bytes"]),
    }


if __name__ == "__main__":
    main()
