"""The overhead measurement: counting streams off bare sockets, CPU per token, and both arms."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infopt.bench import overhead
from infopt.bench.overhead import OverheadOptions, ServerArm, measure
from infopt.bench.overhead_client import StreamCount, stream_all
from infopt.bench.overhead_offline import OfflineEngine
from infopt.bench.raw_http import Address
from infopt.errors import MeasurementError

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'7\r\ndata: {"a":1}\n\n\r\n'
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@pytest.fixture
def answer_with() -> Iterator[Callable[..., Address]]:
    """A server that answers every request with the given pieces, one by one."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket, pieces: list[bytes]) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while connection.recv(65536):
                for piece in pieces:
                    connection.sendall(piece)
                if not b"".join(pieces).endswith(b"\r\n0\r\n\r\n"):
                    return

    def accept(pieces: list[bytes]) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection, pieces), daemon=True).start()

    def start(*pieces: bytes) -> Address:
        threading.Thread(target=accept, args=(list(pieces),), daemon=True).start()
        return Address(*listener.getsockname()[:2])

    yield start
    listener.close()


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 7, 13, 1000])
def test_events_are_counted_however_they_are_cut(answer_with, size):
    whole = HEAD + EVENT * 3 + END
    count = stream_all(answer_with(*cut(whole, size)), "/x", [b"{}"] * 5, concurrency=2)
    assert (count.num_requests, count.num_events) == (5, 15)
    assert count.num_bytes == 5 * len(whole)
    assert count.duration_s > 0


def test_more_connections_than_requests(answer_with):
    count = stream_all(answer_with(HEAD + END), "/x", [b"{}"], concurrency=3)
    assert (count.num_requests, count.num_events) == (1, 0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HEAD + EVENT, "ended within an answer"),
        (HEAD + b'9\r\ndata: {"error":1}\n\n\r\n0\r\n\r\n', "did not end well"),
    ],
)
def test_an_answer_that_ends_badly_is_no_sample(answer_with, answer, words):
    with pytest.raises(MeasurementError, match=words):
        stream_all(answer_with(answer), "/x", [b"{}"], concurrency=1)


def test_both_arms_are_asked_for_the_same():
    options = OverheadOptions(num_requests=3, prompt_tokens=5, output_tokens=7)
    bodies = [json.loads(payload) for payload in options.payloads()]
    assert [body["prompt"] for body in bodies] == options.prompts()
    assert all(body["max_tokens"] == 7 and body["ignore_eos"] for body in bodies)
    assert options.prompts() == OverheadOptions(num_requests=3, prompt_tokens=5).prompts()
    arguments = options.server_arguments()
    assert "--no-enable-prefix-caching" in arguments
    for name in ("num_threads", "max_num_seqs", "max_model_len", "dtype"):
        flag = arguments.index(f"--{name.replace('_', '-')}")
        assert arguments[flag + 1] == str(options.engine()[name])


METRICS = {
    "infopt_generated_tokens_total": 0.0,
    "infopt_step_cpu_seconds_total": 1.0,
    "infopt_serving_cpu_seconds_total": 2.0,
    "process_cpu_seconds_total": 3.0,
}


@pytest.fixture
def arm(monkeypatch):
    """The server's arm, with made-up metrics: ``arm(made tokens, cores)``."""

    def make(num_tokens: float, num_cores: int = 2) -> ServerArm:
        after = {
            "infopt_generated_tokens_total": num_tokens,
            "infopt_step_cpu_seconds_total": 1.5,
            "infopt_serving_cpu_seconds_total": 2.01,
            "process_cpu_seconds_total": 3.52,
        }
        answers = iter([METRICS, after])

        async def read(_: Address) -> dict[str, float]:
            return next(answers)

        monkeypatch.setattr(overhead, "read_metrics", read)
        monkeypatch.setattr(overhead, "num_cores", lambda: num_cores)
        monkeypatch.setattr(overhead, "stream_all", lambda *_, **__: StreamCount(duration_s=0.5))
        return ServerArm(Address("x", 1), OverheadOptions(num_requests=4, output_tokens=50))

    return make


def test_cpu_time_per_token(arm):
    made = arm(200.0)
    assert made.tokens_per_s() == 400
    assert made.serving_us == pytest.approx([50])
    assert made.step_us == pytest.approx([2500])
    assert made.outside_steps_us == pytest.approx([100])


def test_compute_threads_are_no_overhead(arm):
    """With several compute threads the process' CPU time holds work of the steps."""
    made = arm(200.0, num_cores=8)
    made.tokens_per_s()
    assert made.serving_us == pytest.approx([50])
    assert not made.outside_steps_us


def test_missing_tokens_are_no_sample(arm):
    with pytest.raises(MeasurementError, match="199"):
        arm(199.0).tokens_per_s()


def test_an_offline_engine_that_ends_is_told():
    engine = OfflineEngine({"engine": {"model": "absent"}, "prompts": [[5]], "max_tokens": 1})
    try:
        with pytest.raises(MeasurementError, match="ended"):
            engine.tokens_per_s()
    finally:
        engine.stop()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs processor affinity")
def test_the_measurement_runs(tiny_model_dir, tmp_path, monkeypatch):
    before = os.sched_getaffinity(0)
    options = OverheadOptions(
        model=str(tiny_model_dir("llama")), dtype="float32", repeats=2, num_requests=9
    )
    result = measure(options)
    assert os.sched_getaffinity(0) == before
    found = result.to_dict()
    assert found["tokens_per_s"]["ratios"]["server"]["num_pairs"] == 2
    assert len(found["serving_cpu_us_per_token"]["samples"]) == 2
    assert all(value > 0 for value in found["serving_cpu_us_per_token"]["samples"])
    assert "us of CPU per token" in result.describe()

    monkeypatch.setattr(overhead, "measure", lambda _: result)
    overhead.main(["--out", str(tmp_path / "record.json")])
    record: dict[str, Any] = json.loads((tmp_path / "record.json").read_text())
    assert record["hardware"]["num_cores"] > 0
    assert record["concurrency"] == overhead.CONCURRENCY
