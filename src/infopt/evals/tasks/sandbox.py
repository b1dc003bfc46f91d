"""Runs a program that a model wrote, in a process of its own with limits.

A fence against accidents (endless loops, memory, stray files and connections), not against an
attacker: whoever runs models that might be hostile should add a container or a virtual machine.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from infopt.errors import DependencyError

_CHILD = Path(__file__).with_name("sandbox_child.py")
_MAX_STDERR_CHARS = 2000
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """How a program ended.

    Attributes:
        passed: It ran to its end without an exception.
        timed_out: It was stopped at the wall-clock limit.
        network_isolated: Whether it ran without network (None if it did not end normally; not
            every system lets a process give up its network).
        message: The end of what it wrote to standard error.
    """

    passed: bool
    timed_out: bool
    network_isolated: bool | None
    message: str


def run_program(
    source: str, *, timeout_s: float = 5.0, memory_bytes: int = 1 << 30
) -> SandboxResult:
    """Run Python source in an empty temporary folder.

    Args:
        source: The program.
        timeout_s: Wall-clock limit in seconds; also bounds CPU time.
        memory_bytes: Limit of the address space.

    Raises:
        DependencyError: On systems without POSIX process control.
    """
    if not hasattr(os, "waitid"):
        raise DependencyError(
            "Running generated code needs POSIX process control (os.waitid).",
            field="task",
            value="code_pass_at_1",
            remedy="Use the code task, which executes nothing.",
        )
    with tempfile.TemporaryDirectory(prefix="infopt-sandbox-") as folder:
        return _run_in(Path(folder), source, timeout_s, memory_bytes)


def _run_in(folder: Path, source: str, timeout_s: float, memory_bytes: int) -> SandboxResult:
    # The verdict is outside the program's folder and holds a secret that the program never saw.
    program, work, verdict = folder / "program.py", folder / "work", folder / "verdict"
    program.write_text(source, "utf-8")
    work.mkdir()
    nonce = secrets.token_hex(16)
    limits = (str(int(timeout_s) + 1), str(memory_bytes))
    command = [sys.executable, "-I", "-B", str(_CHILD), str(program), str(verdict), *limits]
    with (folder / "stderr").open("w+b") as stderr:
        process = subprocess.Popen(
            command,
            cwd=work,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            env={"PATH": os.defpath, "HOME": str(work), "TMPDIR": str(work)},
        )
        timed_out = _wait(process, nonce, timeout_s)
        stderr.seek(0)
        message = stderr.read().decode("utf-8", "replace")[-_MAX_STDERR_CHARS:]
    lines = verdict.read_text().splitlines() if verdict.exists() else []
    passed = lines[:1] == [nonce] and process.returncode == 0 and not timed_out
    isolated = lines[1] == "1" if passed else None
    return SandboxResult(passed, timed_out, isolated, message)


def _wait(process: subprocess.Popen[bytes], nonce: str, timeout_s: float) -> bool:
    """Wait for the end, then stop everything the program started; tell whether time ran out."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(nonce.encode())
    deadline_s = time.monotonic() + timeout_s
    while not (ended := _has_ended(process.pid)) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    # The ended process is not reaped yet, so its group's number cannot belong to anyone else.
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return not ended


def _has_ended(pid: int) -> bool:
    """Tell whether a child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
