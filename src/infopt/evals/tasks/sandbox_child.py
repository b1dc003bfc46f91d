"""Runs one untrusted program under limits; started by :mod:`infopt.evals.tasks.sandbox` alone.

Arguments: program file, verdict file, CPU seconds, memory bytes. The verdict file receives what
standard input held, and only if the program ran to its end: exiting early does not pass. It also
says whether the network was cut off.
"""

import contextlib
import ctypes
import resource
import runpy
import sys
from pathlib import Path

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_MAX_FILE_BYTES = 1 << 20
_MAX_OPEN_FILES = 64


def cut_network() -> bool:
    """Move into a network namespace without devices; False where the system forbids that."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        return libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0
    return False


def limit_resources(cpu_s: int, memory_bytes: int) -> None:
    """Bound CPU time, memory, file size, open files and core dumps of this process."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_OPEN_FILES, _MAX_OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(program: str, verdict: str, cpu_s: int, memory_bytes: int) -> None:
    """Run the program and write the verdict."""
    nonce = sys.stdin.read()
    isolated = cut_network()
    limit_resources(cpu_s, memory_bytes)
    runpy.run_path(program, run_name="__main__")
    Path(verdict).write_text(f"{nonce}\n{int(isolated)}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
