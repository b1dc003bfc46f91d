"""A server for one configuration, which ends with the job that started it.

with served(config, log_path) as server:
    ...  # server.url answers; server.check() says if it has died
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from infopt.bench.server_process import ServerDiedError, ServerProcess
from infopt.config import EngineConfig

__all__ = ["ServerDiedError", "ServerProcess", "served"]

_GRACE_S = 2
_END_S = 15.0


@contextlib.contextmanager
def served(
    config: EngineConfig,
    log_path: str | Path,
    *,
    port: int = 0,
    models_file: str | None = None,
    energy: str = "none",
    energy_constants: Mapping[str, Any] | None = None,
    start_timeout_s: float = 300.0,
) -> Iterator[ServerProcess]:
    """Start ``infopt serve`` and end it with the block: on success, an error, or SIGTERM.

    Args:
        config: What it serves.
        log_path: File for what it prints.
        port: Port on loopback; 0 takes a free one.
        models_file: File with further registry entries.
        energy: Its meter.
        energy_constants: Constants of the modelled energy in place of the default ones.
        start_timeout_s: Longest time until it answers.

    Raises:
        ServerDiedError: It does not come up; with its last log lines.
    """
    log_path = Path(log_path)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, _exit_on_sigterm():
        file = Path(folder, "engine.yaml")
        file.write_text(yaml.safe_dump({"config": config.to_dict()}), "utf-8")
        options = ["--config", str(file), "--grace-s", str(_GRACE_S), "--energy", energy]
        if energy_constants:
            constants = Path(folder, "constants.yaml")
            constants.write_text(yaml.safe_dump(dict(energy_constants)), "utf-8")
            options += ["--energy-constants", str(constants)]
        if models_file:
            options += ["--registry", models_file]
        server = ServerProcess(options, port=port, log_path=log_path)
        try:
            server.wait_until_ready(start_timeout_s)
            yield server
        finally:
            server.stop(_END_S)


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack: by default it ends a process without any ``finally``."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers; the pipe is left
        return

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
