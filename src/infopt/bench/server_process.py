"""``infopt serve`` as a process of its own, and what its ``/metrics`` say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from infopt.bench.raw_http import Address, get
from infopt.errors import MeasurementError

_START_S = 180.0
_STOP_S = 60.0
_COMMAND = (sys.executable, "-c", "from infopt.cli import app; app()", "serve")


class ServerProcess:
    """A server that runs.

    Args:
        arguments: As ``infopt serve`` takes them; the port is chosen here.
        environment: Variables beside those of this process.

    Attributes:
        address: Where it listens, once `wait_until_ready` has returned.
    """

    address: Address

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it; it is not ready yet."""
        self._folder = tempfile.TemporaryDirectory(prefix="infopt-serve-")
        self._log = Path(self._folder.name) / "log.txt"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*_COMMAND, *arguments, "--port", "0"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"COLUMNS": "300", "TERM": "dumb"} | dict(environment or {}),
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def words(self) -> str:
        """All it has written."""
        return self._log.read_text("utf-8", errors="replace")

    def wait_until_ready(self) -> None:
        """Wait until it answers requests.

        Raises:
            MeasurementError: If it ends, or is not ready within three minutes.
        """
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            found = re.search(r"serving .+ at http://(\S+):(\d+)/v1", self.words)
            if found:
                self.address = Address(found[1], int(found[2]))
                if asyncio.run(get(self.address, "/health"))[0] == 200:
                    return
            time.sleep(0.1)
        raise MeasurementError(f"The server did not start: {self.words.strip() or 'no word'}")

    def stop(self) -> int:
        """Ask it to go and return its exit code; kill it if it does not."""
        self._process.terminate()
        try:
            return self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._folder.cleanup()


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
