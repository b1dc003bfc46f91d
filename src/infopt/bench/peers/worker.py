"""The host's side of a worker process."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infopt.errors import MeasurementError

SCRIPTS = Path(__file__).parent
START_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 300.0


class Worker:
    """An engine in a process of its own.

    Args:
        name: Of the arm, for messages.
        python: Interpreter of the environment that has the engine.
        script: File name of the worker, beside this module.
        options: What its engine is made from.
        log: File for everything that it prints.
        start_timeout_s: Longest time it may take to load.

    Raises:
        MeasurementError: If it does not start; the message ends with its last words.
    """

    def __init__(
        self,
        name: str,
        python: str | Path,
        script: str,
        options: dict[str, Any],
        log: Path,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Start the process and wait until its engine is loaded."""
        self.name, self._log = name, log
        environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [
                    str(python),
                    *map(str, (SCRIPTS / "protocol.py", SCRIPTS / script)),
                    json.dumps(options),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment,
                text=True,
            )
        self._receive(start_timeout_s)

    def measure(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> dict[str, float]:
        """Return ``prefill_s`` and ``decode_s`` of one run (see the worker's protocol)."""
        return self._ask(
            {"command": "measure", "prompts": list(map(list, prompts)), "num_tokens": num_tokens}
        )

    def write_logits(self, ids: Sequence[int], path: Path) -> bool:
        """Let it write the logits of a text; False where the engine does not give them."""
        request = {"command": "logits", "ids": list(ids), "path": str(path)}
        return self._ask(request)["written"]

    def close(self) -> None:
        """End the process."""
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail("ended")
        return self._receive(ANSWER_TIMEOUT_S)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + timeout_s
        while not select.select([stdout], [], [], 1.0)[0]:
            if time.monotonic() > deadline:
                self._process.kill()
                self._fail(f"said nothing for {timeout_s:.0f} s")
        line = stdout.readline()
        if not line:
            self._process.wait()
            self._fail(f"ended with code {self._process.returncode}")
        return json.loads(line)

    def _fail(self, what: str) -> None:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        raise MeasurementError(
            f"The worker {self.name!r} {what}: {lines[-1] if lines else 'no output'}",
            field="worker",
            value=self.name,
            remedy=f"Its output is in {self._log}.",
        )
