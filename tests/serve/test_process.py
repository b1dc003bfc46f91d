"""The command as a process: signals, exit codes, options."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from infopt.cli import app
from infopt.config import EngineConfig
from infopt.errors import ConfigError
from infopt.serve.config import ServeConfig
from infopt.serve.server import check_address, run_server


@pytest.fixture
def process(tiny_model_dir) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``infopt serve`` on a free port, and its address."""
    command = [
        *(sys.executable, "-c", "from infopt.cli import app; app()"),
        *("serve", str(tiny_model_dir("llama")), "--served-model-name", "tiny"),
        *("--dtype", "float32", "--port", "0"),
    ]
    environment = os.environ | {"COLUMNS": "300", "TERM": "dumb"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as made:
        try:
            assert made.stderr is not None
            words = ""
            while not (found := re.search(r"serving tiny at (\S+)/v1", words)):
                line = made.stderr.readline()
                assert line, f"the server ended: {words}"
                words += line
            yield made, found[1]
        finally:
            made.kill()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_lets_requests_finish_and_exits_with_0(process, wait, number):
    made, url = process
    with httpx.Client(base_url=url, timeout=60) as http, ThreadPoolExecutor(1) as pool:
        wait(lambda: http.get("/health").status_code == 200, 60)
        body = {"prompt": [5, 6], "max_tokens": 400, "ignore_eos": True}
        running = pool.submit(http.post, "/v1/completions", json=body)
        wait(lambda: 'requests_running{model="tiny"} 1.0' in http.get("/metrics").text)
        made.send_signal(number)
        assert running.result().json()["usage"]["completion_tokens"] == 400
    assert made.wait(30) == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["absent-slug"], ["absent-slug"]),
        (["x", "--port", "70000"], ["port", "70000"]),
        (["a", "--model", "a"], ["two models", "--served-model-name"]),
        (["a", "b", "--served-model-name", "c"], ["2 models and 1 names"]),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(args: list[str], words: list[str]) -> None:
    result = CliRunner().invoke(app, ["serve", "--port", "0", *args])
    assert result.exit_code == 2
    assert all(word in result.output for word in words)


def test_options_of_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import infopt.serve.server as module

    (tmp_path / "c.yaml").write_text(
        "config: {model: one, max_num_seqs: 3, kv_cache_memory_gib: 2}"
    )
    calls = []
    monkeypatch.setattr(module, "run_server", lambda *args, **options: calls.append(args))
    file = ["--config", str(tmp_path / "c.yaml")]
    assert CliRunner().invoke(app, ["serve", *file]).exit_code == 0
    assert CliRunner().invoke(app, ["serve", *file, "a", "-m", "b", "--port", "1"]).exit_code == 0
    (first, _), (second, options) = calls
    assert [(c.model, c.max_num_seqs, c.kv_cache_memory_gib) for c in first] == [("one", 3, 2.0)]
    assert [(c.model, c.kv_cache_memory_gib) for c in second] == [("a", 1.0), ("b", 1.0)]
    assert options.port == 1


@pytest.mark.parametrize(
    ("host", "words"),
    [("127.0.0.1", "in use"), ("256.1.1.1", "cannot listen"), ("192.0.2.1", "assign")],
)
def test_an_address_that_cannot_be_listened_on_is_named_before_anything_loads(host, words) -> None:
    """Pins: the model was loaded first, and then the server ended with an exit code of its own."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = ServeConfig(host=host, port=taken.getsockname()[1], api_key="key")
        with pytest.raises(ConfigError, match=words) as error:
            run_server([EngineConfig(model="no-such-model")], config)
    assert f"{host}:{config.port}" in error.value.message
    check_address("127.0.0.1", 0)
