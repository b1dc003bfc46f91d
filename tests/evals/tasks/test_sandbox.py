import os
import time
from pathlib import Path

import pytest

from infopt.errors import DependencyError
from infopt.evals.tasks.sandbox import run_program


def test_a_program_that_ends_passes():
    result = run_program("assert 1 + 1 == 2")
    assert result.passed
    assert not result.timed_out
    assert result.network_isolated in (True, False)


@pytest.mark.parametrize(
    "source",
    [
        "assert False",
        "raise SystemExit(1)",
        "import os; os._exit(0)",  # ends well before the tests would have run
        "raise SystemExit(0)",
        "def broken(:",
        "x = bytearray(1 << 34)",
        "open('big', 'wb').write(b'x' * (1 << 24))",
        "import ctypes; ctypes.string_at(0)",  # crashes the interpreter
    ],
)
def test_a_program_that_fails_or_leaves_early_does_not_pass(source):
    result = run_program(source)
    assert not result.passed
    assert not result.timed_out
    assert result.network_isolated is None


def test_the_error_is_shown():
    assert "ZeroDivisionError" in run_program("1 / 0").message


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import time; time.sleep(1000)",
        # Swallowing everything does not help: the whole session is stopped from outside.
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    ],
)
def test_a_program_that_does_not_end_is_stopped(source):
    result = run_program(source, timeout_s=1.0)
    assert result.timed_out
    assert not result.passed


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs a /proc file system")
def test_children_are_stopped_too(tmp_path):
    pid_file = tmp_path / "pid"
    program = (
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
    )
    assert run_program(program).passed
    pid = int(pid_file.read_text())
    for _ in range(200):  # the system reaps orphans a moment later
        if not is_running(pid):
            break
        time.sleep(0.05)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_it_starts_in_an_empty_folder_without_our_environment(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    program = (
        "import os, sys\n"
        "assert os.listdir('.') == []\n"
        "assert 'SECRET_TOKEN' not in os.environ\n"
        "assert sys.stdin.read() == ''\n"
        "open('scratch', 'w').write('allowed')\n"
    )
    before = set(Path().iterdir())
    result = run_program(program)
    assert result.passed, result.message
    assert set(Path().iterdir()) == before


def test_no_network_where_the_system_can_cut_it():
    program = (
        "import socket\n"
        "try:\n"
        "    socket.create_connection(('127.0.0.1', PORT), timeout=1).close()\n"
        "except OSError:\n"
        "    pass\n"
        "else:\n"
        "    raise AssertionError('connected')\n"
    )
    if not run_program("pass").network_isolated:
        pytest.skip("this system does not let a process give up its network")
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            pass  # reachable from here
        result = run_program(program.replace("PORT", str(port)))
    assert result.passed, result.message


def test_systems_without_process_control_are_named(monkeypatch):
    monkeypatch.delattr(os, "waitid")
    with pytest.raises(DependencyError, match="waitid"):
        run_program("pass")
