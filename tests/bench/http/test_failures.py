"""Streams that break, over a real socket: failed requests, never good ones."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from infopt.bench.http.load import HttpLoad
from infopt.bench.http.openloop import run_http_load
from infopt.bench.http.result import HttpLoadResult
from infopt.bench.http.target import HttpTarget
from infopt.bench.slo import SLO
from infopt.bench.workload_types import WorkloadRequest

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
CHUNKED = HEAD.replace(b"Connection: close", b"Transfer-Encoding: chunked")
TWO = [b'data: {"choices": [{"text": "a"}]}\n\n', b'data: {"choices": [{"text": "b"}]}\n\n']
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"
PAUSE_S = 0.02

Start = Callable[[Sequence[bytes | float]], str]


def run(url: str, count: int = 1) -> HttpLoadResult:
    tokenizer = type("Words", (), {"decode": lambda self, ids, skip_special_tokens: "hi"})()
    load = HttpLoad(HttpTarget(url, "m", tokenizer=tokenizer), timeout_s=20)
    return run_http_load(load, [WorkloadRequest(f"r{i}", 0.0, [1, 2], 2) for i in range(count)])


def test_pings_blank_events_and_cut_lines(raw_server: Start) -> None:
    """Meta lines broke a client's parser; so did events cut anywhere, or several at once."""
    data = b"".join([b": ping\r\n\r\nretry: 3000\n\n\n", *TWO, b": bye\n\n", USAGE, DONE])
    cut = [data[:70], PAUSE_S, data[70:71], PAUSE_S, data[71:]]
    for parts in ([data], cut):
        result = run(raw_server([HEAD, *parts]))
        record = result.http_records[0]
        assert record.status == "completed"
        assert record.answer is not None
        assert [p.text for p in record.answer.pieces] == ["a", "b"]
        assert (record.num_output_tokens, record.num_prompt_tokens) == (2, 2)


@pytest.mark.parametrize(
    ("parts", "error", "partial"),
    [
        ([HEAD, *TWO, b'data: {"choices": [{"te'], "no [DONE]", 2),
        ([HEAD, *TWO], "no [DONE]", 2),
        ([CHUNKED, b"24\r\n", TWO[0], b"\r\n40\r\nda"], "connection", 1),
        ([HEAD, *TWO, b'data: {"error": {"message": "boom"}}\n\n', DONE], "error event", 2),
        ([HEAD, *TWO, b"event: error\ndata: boom\n\n", DONE], "error event", 2),
        ([HEAD, TWO[0], b"data: {broken\n\n", DONE], "malformed stream", 1),
        ([HEAD.replace(b"event-stream", b"html"), b"<p>hello"], "malformed stream", 0),
        ([b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"], "HTTP 503", 0),
        ([b'HTTP/1.1 400 No\r\nContent-Length: 22\r\n\r\n{"error": {"code": 4}}'], "HTTP 400", 0),
        ([b"HTTP/1.1 302 Go\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"], "HTTP 302", 0),
        ([b"nonsense\r\n\r\n"], "connection", 0),
        ([], "connection", 0),
        ([HEAD], "no [DONE]", 0),
    ],
)
def test_a_broken_answer_is_a_failed_request(
    raw_server: Start, parts: list[bytes], error: str, partial: int
) -> None:
    """An answer that broke off was counted as a short, fast one."""
    result = run(raw_server(parts), count=2)
    summary = result.summary(SLO(ttft_s=100, e2e_s=100))
    assert [r.status for r in result.records] == ["failed", "failed"]
    assert summary["errors"] == {error: 2}
    assert [r.num_output_tokens for r in result.records] == [partial] * 2
    assert summary["latency"]["ttft_s"]["count"] == summary["latency"]["e2e_s"]["count"] == 0
    assert summary["goodput"]["num_met"] == summary["num_output_tokens"] == 0
    assert summary["goodput"]["num_requests"] == 2


@pytest.mark.parametrize("parts", [[DONE], [b": nothing\n\n", USAGE.replace(b"2}", b"0}"), DONE]])
def test_an_answer_without_a_token_is_empty(raw_server: Start, parts: list[bytes]) -> None:
    """A request without a first token got a huge negative time to first token."""
    result = run(raw_server([HEAD, *parts]))
    summary: dict[str, Any] = result.summary(SLO(ttft_s=100))
    assert (summary["num_empty"], summary["num_completed"]) == (1, 0)
    assert summary["errors"] == {"no token": 1}
    assert result.timings[0].ttft_s is None
    assert summary["latency"]["ttft_s"]["count"] == 0
    assert summary["goodput"]["num_met"] == 0
    assert any("1 empty of 1 requests" in text for text in result.warnings)


def test_good_answers_beside_failed_ones_keep_their_figures(raw_server: Start) -> None:
    good, bad = raw_server([HEAD, *TWO, USAGE, DONE]), raw_server([HEAD, *TWO])
    result, broken = run(good, count=2), run(bad)
    result.records += broken.records
    summary = result.summary(SLO(ttft_s=100))
    assert (summary["num_completed"], summary["num_failed"]) == (2, 1)
    assert summary["latency"]["ttft_s"]["count"] == 2
    assert summary["goodput"]["goodput_share"] == pytest.approx(2 / 3)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert run(f"http://127.0.0.1:{port}").summary()["errors"] == {"connection": 1}
