"""A server of its own process: it comes up, tells why it does not, and never outlives its job."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from infopt.config import EngineConfig
from infopt.experiments.server_process import ServerDiedError, served

HANG_S = 60


@pytest.fixture
def config(tiny_model_dir: Callable[..., Path]) -> EngineConfig:
    return EngineConfig(model=str(tiny_model_dir("llama")), dtype="float32", num_kv_pages=32)


def test_server_answers_and_ends_with_the_block(config: EngineConfig, tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="by the way"),
        served(config, tmp_path / "logs" / "s.log") as server,
    ):
        cards = httpx.get(f"{server.url}/v1/models", timeout=HANG_S).json()["data"]
        assert cards[0]["max_model_len"] == 512
        server.check()
        raise RuntimeError("by the way")
    assert server.process.poll() == 0
    assert "serving" in server.log_path.read_text()


def test_death_is_told_with_the_last_words(config: EngineConfig, tmp_path: Path) -> None:
    with served(config, tmp_path / "s.log") as server:
        server.process.kill()
        server.process.wait(HANG_S)
        with pytest.raises(ServerDiedError, match=r"(?s)exit code -9.*\n.*serving"):
            server.check()


def test_a_taken_port_is_told(config: EngineConfig, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ServerDiedError, match=r"(?s)did not start.*Address already in use"),
            served(config, tmp_path / "s.log", port=port),
        ):
            pytest.fail("nothing can be served there")


@pytest.mark.slow
def test_an_impossible_configuration_is_told(config: EngineConfig, tmp_path: Path) -> None:
    absent = config.replace(model="no-such-model")
    with (
        pytest.raises(ServerDiedError, match="no-such-model") as caught,
        served(absent, tmp_path / "s.log"),
    ):
        pytest.fail("nothing can be served")
    assert str(tmp_path / "s.log") in (caught.value.remedy or "")


JOB = """
import sys, time
from infopt.config import EngineConfig
from infopt.experiments.server_process import served
config = EngineConfig(model=sys.argv[1], dtype="float32", num_kv_pages=32)
with served(config, sys.argv[2]) as server:
    print(server.process.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_server_ends_with_a_killed_job(
    config: EngineConfig, tmp_path: Path, number: signal.Signals
) -> None:
    """A server that was left behind kept the port, the memory and the processor."""
    command = [sys.executable, "-c", JOB, config.model, str(tmp_path / "s.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        server = int(job.stdout.readline())
        job.send_signal(number)
        job.wait(HANG_S)
    deadline = time.monotonic() + HANG_S
    while is_alive(server):
        assert time.monotonic() < deadline, "the server outlived its job"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")
    return not (status.exists() and "State:\tZ" in status.read_text())
