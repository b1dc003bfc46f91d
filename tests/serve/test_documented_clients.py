"""The clients that the pages show, as they are written there, against a live server."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infopt.config import EngineConfig
from infopt.serve.config import ServeConfig
from infopt.serve.server import load_engines
from infopt.serve.service import Service

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "serving.md"]
ADDRESS = "http://127.0.0.1:8000"
MODEL = "smollm2-135m-instruct-q4_1"


def blocks(path: Path, language: str, word: str) -> list[str]:
    """Return the code blocks of a page that hold a word."""
    fence = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [code for code in fence.findall(path.read_text("utf-8")) if word in code]


@pytest.fixture(scope="module")
def real_server(smollm2_path: Path, run_service: Callable[..., Any]) -> Iterator[Any]:
    """The model that the pages name, under its name."""
    config = EngineConfig(model=MODEL, max_model_len=512, kv_cache_memory_gib=0.1)
    with run_service(Service(load_engines([config]), ServeConfig(port=0))) as server:
        yield server
        server.wait_idle()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_curl(real_server: Any, page: Path) -> None:
    commands = blocks(page, "bash", "curl ")
    assert commands
    for command in commands:
        assert ADDRESS in command
        done = subprocess.run(
            [
                "bash",
                "-c",
                command.replace("curl ", "curl --fail-with-body --silent ").replace(
                    ADDRESS, real_server.url
                ),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert '"role":"assistant"' in done.stdout
        if '"stream": true' in command:
            assert done.stdout.endswith("data: [DONE]\n\n")


@pytest.fixture
def hold(real_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let the model run for a few steps only, until the event is set."""
    goes_on, num_steps = threading.Event(), 0
    hidden = real_server.engine.runner.hidden

    def held(ctx: Any) -> Any:
        nonlocal num_steps
        num_steps += 1
        if num_steps > 5:
            assert goes_on.wait(60)
        return hidden(ctx)

    monkeypatch.setattr(real_server.engine.runner, "hidden", held)
    yield goes_on
    goes_on.set()
    real_server.wait_idle()


def test_streaming_with_the_openai_package(real_server: Any, hold: threading.Event) -> None:
    """Text is printed while the model is still at work, and all of it is there at the end."""
    (code,) = blocks(PAGES[0], "python", "openai")
    assert ADDRESS in code
    assert MODEL in code
    code = code.replace(ADDRESS, real_server.url)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        first = client.stdout.read(1)
        assert real_server.engine.has_unfinished
        hold.set()
        text = first + client.stdout.read()
    assert client.returncode == 0
    messages = [
        {"role": "system", "content": "You are a painter."},
        {"role": "user", "content": "Name three colours."},
    ]
    whole = real_server.chat(messages=messages, model=MODEL, max_tokens=32, temperature=0)
    assert text == whole["choices"][0]["message"]["content"]
    assert len(text) > 10


def test_the_page_lists_what_is_enforced_and_what_can_be_chosen() -> None:
    from infopt.serve.tools.parsers import PARSERS
    from infopt.serve.tools.tags import TAGS
    from infopt.structured.schema_check import ENFORCED, NOT_ENFORCED

    words = set(re.findall(r"`([^`\n]+)`", PAGES[1].read_text("utf-8")))
    assert words >= {*ENFORCED, *PARSERS, *TAGS}
    assert not words & NOT_ENFORCED
