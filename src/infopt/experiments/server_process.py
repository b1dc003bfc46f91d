"""A server of its own process, which never outlives the job that started it.

with served(config, log_path) as server:
    ...  # server.url answers; server.check() says if it has died
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx
import yaml

from infopt.config import EngineConfig
from infopt.errors import MeasurementError

_GRACE_S = 2
_END_S = 15.0
_POLL_S = 0.05
_LOG_LINES = 15

# Standard input is a pipe that nobody writes to: it ends when the job ends, however it ends (a
# SIGKILL leaves no time for tidying up). The command line is a layer above this module.
_COMMAND = """
import os, signal, threading
def end_with_the_job():
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end_with_the_job, daemon=True).start()
from infopt.cli import app
app(prog_name="infopt")
"""


class ServerDiedError(MeasurementError):
    """The server ended, or never came up; the message holds its last words."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server.

    Attributes:
        url: Its address.
        log_path: What it has printed.
        process: The process.
    """

    url: str
    log_path: Path
    process: subprocess.Popen[bytes]

    def check(self) -> None:
        """Refuse to go on without it.

        Raises:
            ServerDiedError: It has ended.
        """
        if self.process.poll() is not None:
            raise died("The server died", self.process, self.log_path)


@contextlib.contextmanager
def served(
    config: EngineConfig,
    log_path: str | Path,
    *,
    port: int = 0,
    models_file: str | None = None,
    start_timeout_s: float = 300.0,
) -> Iterator[ServerProcess]:
    """Start ``infopt serve`` and end it with the block: on success, an error, or SIGTERM.

    Args:
        config: What it serves.
        log_path: File for what it prints.
        port: Port on loopback; 0 takes a free one.
        models_file: File with further registry entries.
        start_timeout_s: Longest time until it answers.

    Raises:
        ServerDiedError: It does not come up; with its last log lines.
    """
    log_path = Path(log_path)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, _exit_on_sigterm(), log_path.open("wb") as log:
        file = Path(folder, "engine.yaml")
        file.write_text(yaml.safe_dump({"config": config.to_dict()}), "utf-8")
        options = ["--config", str(file), "--port", str(port), "--grace-s", str(_GRACE_S)]
        if models_file:
            options += ["--registry", models_file]
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, "serve", *options],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"COLUMNS": "1000", "TERM": "dumb", "PYTHONUNBUFFERED": "1"},
        )
        try:
            yield ServerProcess(_wait_for(process, log_path, start_timeout_s), log_path, process)
        finally:
            _end(process)


def died(what: str, process: subprocess.Popen[bytes], log_path: Path) -> ServerDiedError:
    """Return the error that says how a server ended and what it said last."""
    lines = log_path.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    return ServerDiedError(
        f"{what} (exit code {process.poll()}). Its last lines:\n" + "\n".join(lines),
        field="serving",
        value=process.poll(),
        remedy=f"All of them: {log_path}",
    )


def _wait_for(process: subprocess.Popen[bytes], log_path: Path, timeout_s: float) -> str:
    """Return the address as soon as the server is ready."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        # Announced behind "at", by the server itself: with port 0 nobody else knows the port.
        found = re.search(r"\bat (http://\S+)/v1", log_path.read_text("utf-8", errors="replace"))
        if process.poll() is not None:
            raise died("The server did not start", process, log_path)
        if found and _is_ready(found[1]):
            return found[1]
        time.sleep(_POLL_S)
    raise died(f"The server was not ready after {timeout_s:g} s", process, log_path)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and end it if it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


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
