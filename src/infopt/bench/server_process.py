"""``infopt serve`` as a process of its own, and what its ``/metrics`` say.

A server never outlives the process that started it, however that one ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from infopt.bench.raw_http import Address, get
from infopt.errors import MeasurementError

_START_S = 180.0
_STOP_S = 60.0
_POLL_S = 0.05
_LOG_LINES = 15

# Standard input is a pipe that nobody writes to: it ends when the starting process ends, even by a
# SIGKILL, which leaves no time for tidying up. The command line is a layer above this module.
_COMMAND = """
import os, signal, threading
def end_with_the_starter():
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end_with_the_starter, daemon=True).start()
from infopt.cli import app
app(prog_name="infopt")
"""


class ServerDiedError(MeasurementError):
    """The server ended, or never came up; the message holds its last words."""


class ServerProcess:
    """A server that runs.

    Args:
        arguments: As ``infopt serve`` takes them.
        environment: Variables beside those of this process.
        port: Port on loopback; 0 takes a free one.
        log_path: File for what it prints (default: a temporary one).

    Attributes:
        process: The process.
        log_path: What it has printed.
        url: Where it answers, once `wait_until_ready` has returned.
    """

    url: str

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        port: int = 0,
        log_path: Path | None = None,
    ) -> None:
        """Start it; it is not ready yet."""
        self._folder = tempfile.TemporaryDirectory(prefix="infopt-serve-")
        self.log_path = log_path or Path(self._folder.name) / "log.txt"
        surroundings = {"COLUMNS": "1000", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, "serve", *arguments, "--port", str(port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | surroundings | dict(environment or {}),
            )

    @property
    def address(self) -> Address:
        """Host and port of its URL."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return Address(host, int(port))

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def words(self) -> str:
        """All it has written."""
        return self.log_path.read_text("utf-8", errors="replace")

    def check(self) -> None:
        """Refuse to go on without it.

        Raises:
            ServerDiedError: It has ended.
        """
        if self.process.poll() is not None:
            raise self._died("The server died")

    def wait_until_ready(self, timeout_s: float = _START_S) -> None:
        """Wait until it answers requests.

        Raises:
            ServerDiedError: It ends, or is not ready in time; with its last words.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            # Announced behind "at" by the server itself: with port 0 nobody else knows the port.
            found = re.search(r"\bat (http://\S+)/v1", self.words)
            if self.process.poll() is not None:
                raise self._died("The server did not start")
            if found and _is_ready(found[1]):
                self.url = found[1]
                return
            time.sleep(_POLL_S)
        raise self._died(f"The server was not ready after {timeout_s:g} s")

    def stop(self, timeout_s: float = _STOP_S) -> int:
        """Ask it to go and return its exit code; kill it if it does not."""
        self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            if self.process.stdin is not None:
                self.process.stdin.close()
            self._folder.cleanup()

    def _died(self, what: str) -> ServerDiedError:
        code, lines = self.process.poll(), self.words.splitlines()[-_LOG_LINES:]
        return ServerDiedError(
            f"{what} (exit code {code}). Its last lines:\n" + "\n".join(lines),
            field="serving",
            value=code,
            remedy=f"All of them: {self.log_path}",
        )


@contextlib.contextmanager
def serve(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """Run ``infopt serve`` until the block ends.

    Yields:
        The server, ready.
    """
    process = ServerProcess(arguments, environment)
    try:
        process.wait_until_ready()
        yield process
    finally:
        process.stop()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


async def read_metrics(address: Address) -> dict[str, float]:
    """Return what ``/metrics`` prints, values of equal names (labels aside) added up.

    Buckets of histograms and times of creation are left out.

    Raises:
        MeasurementError: If the server does not answer.
    """
    status, text = await get(address, "/metrics")
    if status != 200:
        raise MeasurementError(f"/metrics answered {status}.", field="status", value=status)
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.partition("{")[0].split(" ")[0], float(line.rpartition(" ")[2])
            if not name.endswith(("_bucket", "_created")):
                values[name] = values.get(name, 0.0) + value
    return values
