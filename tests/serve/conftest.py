"""A real server on loopback, on a thread of this process, with the tiny random model."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from infopt.config import EngineConfig
from infopt.engine import rejection as sampling_module
from infopt.engine.engine import Engine
from infopt.engine.loader import build_engine
from infopt.models.tokenizer import Tokenizer
from infopt.serve.config import ServeConfig
from infopt.serve.server import Server
from infopt.serve.service import Service

MODEL = "tiny"


@dataclass
class Running:
    """A server that runs, and ways to talk to it."""

    server: Server
    service: Service
    http: httpx.Client
    thread: threading.Thread

    @property
    def url(self) -> str:
        return str(self.http.base_url)

    @property
    def engine(self) -> Engine:
        return next(iter(self.service.models.values())).engine

    @property
    def tokenizer(self) -> Tokenizer:
        return next(iter(self.service.models.values())).tokenizer

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def complete(self, prompt: Any, **body: Any) -> dict[str, Any]:
        answer = self.post("/v1/completions", model=MODEL, prompt=prompt, **body)
        assert answer.status_code == 200, answer.text
        return strict_json(answer.text)

    def chat(self, *contents: str, **body: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": c} for c in contents or ("hi",)]
        answer = self.post(
            "/v1/chat/completions", **({"model": MODEL, "messages": messages} | body)
        )
        assert answer.status_code == 200, answer.text
        return strict_json(answer.text)

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Return the events of a stream, after checking its form."""
        answer = self.post(path, **({"model": MODEL, "stream": True} | body))
        assert answer.status_code == 200, answer.text
        return events_of(answer.text)

    def wait_idle(self) -> None:
        wait_until(lambda: not self.engine.has_unfinished)
        pool = self.engine.cache.pool
        assert pool.num_used == 0
        assert pool.num_free + pool.num_cached == pool.num_pages


def strict_json(text: str) -> Any:
    """Parse JSON as the standard has it: no NaN, no infinities."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the data of each event; the last line is [DONE], once, unless there was an error."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    data = [block.removeprefix("data: ") for block in blocks]
    events = [strict_json(item) for item in data if item != "[DONE]"]
    failed = bool(events) and "error" in events[-1]
    assert data.count("[DONE]") == (0 if failed else 1)
    assert failed or data[-1] == "[DONE]"
    return events


def wait_until(reached: Callable[[], Any], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


@contextlib.contextmanager
def running(service: Service) -> Iterator[Running]:
    server = Server(service)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive())
    host, port = server.address
    with httpx.Client(base_url=f"http://{host}:{port}", timeout=60) as http:
        wait_until(lambda: service.state != "starting")
        yield Running(server, service, http, thread)
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive(), "the server does not stop"
    service.loop.stop()


@pytest.fixture(scope="session")
def make_engine(tiny_model_dir: Any) -> Callable[..., Engine]:
    """Factory of engines on tiny models."""

    def make(family: str = "llama", **options: Any) -> Engine:
        values = {"dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 64} | options
        return build_engine(EngineConfig(model=str(tiny_model_dir(family)), **values))

    return make


@pytest.fixture(scope="session")
def shared_server(make_engine: Callable[..., Engine]) -> Iterator[Running]:
    """One server for all tests that need nothing special of it."""
    with running(Service({MODEL: make_engine()}, ServeConfig(port=0))) as server:
        yield server


@pytest.fixture
def server(shared_server: Running) -> Iterator[Running]:
    """The shared server, without cached prefixes; it must be idle and whole afterwards."""
    shared_server.engine.reset_prefix_cache()
    yield shared_server
    shared_server.wait_idle()
    assert shared_server.service.state == "ready"


@pytest.fixture
def start_server(make_engine: Callable[..., Engine]) -> Iterator[Callable[..., Running]]:
    """Factory of servers of one's own: ``start_server(engine={...}, port=0, api_key="k")``."""
    with contextlib.ExitStack() as stack:

        def start(engine: dict[str, Any] | Engine | None = None, **options: Any) -> Running:
            made = engine if isinstance(engine, Engine) else make_engine(**(engine or {}))
            config = ServeConfig(**({"port": 0} | options))
            return stack.enter_context(running(Service({MODEL: made}, config)))

        yield start


@pytest.fixture(scope="module")
def fuzzed_server(make_engine: Callable[..., Engine]) -> Iterator[Running]:
    """A server for requests of any kind: short sequences, so that none of them takes long."""
    engine = make_engine(max_model_len=64, max_num_seqs=16)
    config = ServeConfig(port=0, api_key="secret")
    with running(Service({MODEL: engine}, config)) as server:
        yield server
        server.wait_idle()
        assert server.service.state == "ready"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Force the output: ``script([5, 6, 1])`` for every completion, whatever the model says."""

    def install(token_ids: list[int]) -> None:
        def forced(logits: Any, rows: list[Any], draw: Any) -> list[int]:
            return [token_ids[row.num_output_tokens] for row in rows]

        monkeypatch.setattr(sampling_module, "sample", forced)

    return install


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Engine, float], None]:
    """Make every step of an engine take some time."""

    def install(engine: Engine, seconds: float) -> None:
        hidden = engine.runner.hidden

        def delayed(ctx: Any) -> Any:
            time.sleep(seconds)
            return hidden(ctx)

        monkeypatch.setattr(engine.runner, "hidden", delayed)

    return install


@pytest.fixture
def words(server: Running) -> Iterator[Callable[..., list[int]]]:
    """Give single tokens the texts of one's choice: ``words("go ", "u", b"\\xe2\\x80")``."""
    tokenizer = server.tokenizer
    tokenizer.token_bytes(0)  # the table is built when first needed
    table = tokenizer._bytes
    assert table is not None
    saved = list(table)
    free = iter(range(tokenizer.vocab_size - 1, 260, -1))

    def make(*texts: str | bytes) -> list[int]:
        ids = [next(free) for _ in texts]
        for token_id, text in zip(ids, texts, strict=True):
            table[token_id] = text if isinstance(text, bytes) else text.encode()
        return ids

    yield make
    table[:] = saved


@pytest.fixture
def wait() -> Callable[..., None]:
    """Wait until something holds."""
    return wait_until


@pytest.fixture(scope="session")
def run_service() -> Any:
    """Context manager that runs a service."""
    return running
