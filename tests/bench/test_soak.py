"""The parts of the soak test: its requests, its reading of answers, and what it calls a fault."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from infopt.bench import soak
from infopt.bench.raw_http import Address, BrokenAnswerError, Connection, get, post
from infopt.bench.server_process import ServerProcess, read_metrics
from infopt.bench.soak_answers import WrongAnswerError, read_answer
from infopt.bench.soak_checks import check_reply
from infopt.bench.soak_clients import Reply, send_all
from infopt.bench.soak_leaks import leaks
from infopt.bench.soak_mix import kinds, make_request
from infopt.bench.soak_request import CHAT, COMPLETIONS, MixOptions, SoakRequest, request_of
from infopt.bench.soak_run import SoakReport
from infopt.errors import MeasurementError

MIX = MixOptions()


class TestMix:
    def test_a_request_depends_on_seed_and_index_alone(self):
        made = [make_request(index, 5, MIX) for index in range(60)]
        assert made == [make_request(index, 5, MIX) for index in reversed(range(60))][::-1]
        assert made != [make_request(index, 6, MIX) for index in range(60)]

    def test_every_kind_occurs_and_greedy_answers_abound(self):
        made = [make_request(index, 0, MIX) for index in range(2000)]
        assert {r.kind for r in made} == kinds()
        assert sum(r.is_repeatable and r.is_greedy for r in made) >= 100
        assert len({json.dumps(r.schema) for r in made}) > 64, "the server must forget some"
        assert {bool(r.body.get("stream")) for r in made} == {True, False}
        assert {r.path for r in made} == {CHAT, COMPLETIONS}

    def test_requests_fit_the_model(self):
        made = [make_request(index, 1, MIX) for index in range(2000)]
        for request in made:
            if request.statuses == (200,):
                size = len(json.dumps(request.body.get("messages"), ensure_ascii=False).encode())
                assert size < 330
        assert max(len(r.payload) for r in made if r.kind != "body too long") < MIX.max_body_bytes
        assert all(len(r.payload) > MIX.max_body_bytes for r in made if r.kind == "body too long")

    def test_what_hangs_up_or_is_drawn_freely_cannot_be_repeated(self):
        body = {"prompt": "a", "temperature": 0}
        assert request_of(0, "plain", COMPLETIONS, body).is_repeatable
        assert request_of(0, "plain", COMPLETIONS, {"prompt": "a", "seed": 1}).is_repeatable
        assert not request_of(0, "plain", COMPLETIONS, {"prompt": "a"}).is_repeatable
        assert not request_of(0, "plain", COMPLETIONS, body, manner="hang up").is_repeatable
        assert not request_of(0, "plain", COMPLETIONS, body, statuses=(400,)).is_repeatable


def choice(text: str = "ab", **changes: Any) -> dict[str, Any]:
    usual = {"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}
    return usual | {"stop_reason": None} | changes


def whole(*choices: dict[str, Any], tokens: int = 2) -> bytes:
    usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
    return json.dumps({"choices": choices, "usage": usage}).encode()


def request(**changes: Any) -> SoakRequest:
    more = {k: changes.pop(k) for k in ("schema", "pattern", "tools", "statuses") if k in changes}
    body = {"prompt": "x", "max_tokens": 2, "temperature": 0} | changes
    path = CHAT if "messages" in body else COMPLETIONS
    return request_of(0, "plain", path, body, **more)


def faults(made: SoakRequest, body: bytes, status: int = 200) -> str:
    return "; ".join(check_reply(made, status, body)[1])


class TestChecks:
    """A check that finds nothing proves nothing: each finds its fault."""

    def test_a_right_answer(self):
        answer, found = check_reply(request(), 200, whole(choice()))
        assert not found
        assert answer is not None
        assert answer.comparable()[0]["text"] == "ab"

    @pytest.mark.parametrize(
        ("made", "body", "words"),
        [
            (request(n=2), whole(choice(), tokens=2), "choices [0] instead of [0, 1]"),
            (request(), whole(choice(finish_reason="error")), "finish reason 'error'"),
            (request(), whole(choice(finish_reason=None)), "finish reason None"),
            (request(), whole(choice(), tokens=3), "3 tokens, asked for at most 2"),
            (request(ignore_eos=True), whole(choice(), tokens=1), "1 tokens, asked for 2"),
            (request(stop=["b"]), whole(choice()), "the stop string 'b' is in 'ab'"),
            (request(stop=["c"]), whole(choice(stop_reason="d")), "stop reason 'd'"),
            (request(logprobs=0), whole(choice()), "log-probabilities []"),
            (request(), whole(choice(), choice()), "something follows"),
            (request(pattern="[a-z]b"), whole(choice("abc")), "does not match"),
            (request(schema={"type": "object"}), whole(choice("[]")), "is not of the schema"),
            (request(schema={"type": "object"}), whole(choice("{")), "not JSON"),
            (request(), b'{"choices": [{"index": 0, "text": NaN}]}', "not JSON"),
            (request(), b'{"choices": [{"index": 0}]}', "lacks a part"),
        ],
    )
    def test_faults(self, made, body, words):
        assert words in faults(made, body)

    def test_logprobs_are_one_per_token_and_not_above_zero(self):
        def lists(*values: float) -> dict[str, Any]:
            keys = ("tokens", "top_logprobs", "text_offset")
            return {key: list(values) for key in keys} | {"token_logprobs": list(values)}

        made = request(logprobs=0)
        assert not faults(made, whole(choice(logprobs=lists(-1, -2))))
        assert "1 log-probabilities" in faults(made, whole(choice(logprobs=lists(-1))))
        assert "log-probabilities [-1, 0.5]" in faults(made, whole(choice(logprobs=lists(-1, 0.5))))
        assert "nobody asked" in faults(request(), whole(choice(logprobs=lists(-1, -2))))

    def test_calls(self):
        tools = {"look": {"type": "object", "required": ["x"]}}
        made = request(messages=[], tools=tools, tool_choice="required")

        def answer(reason: str, *calls: tuple[str, str]) -> bytes:
            made = [{"function": {"name": n, "arguments": a}} for n, a in calls]
            message = {"role": "assistant", "content": None, "tool_calls": made}
            return whole(choice(message=message, finish_reason=reason))

        assert not faults(made, answer("tool_calls", ("look", '{"x": 1}')))
        assert "calls []" in faults(made, answer("tool_calls"))
        assert "calls [['jump'" in faults(made, answer("tool_calls", ("jump", "{}")))
        assert "not of the schema" in faults(made, answer("tool_calls", ("look", "{}")))
        assert "finish reason 'stop'" in faults(made, answer("stop", ("look", '{"x": 1}')))

    def test_statuses_and_errors(self):
        refused = request(statuses=(400,))
        good = {"message": "no", "type": "t", "param": None, "code": None}
        assert not faults(refused, json.dumps({"error": good}).encode(), 400)
        assert "not the form" in faults(refused, b'{"error": {"message": "no"}}', 400)
        assert "lacks a part" in faults(refused, b"{}", 400)
        assert "status 500 instead of 200" in faults(request(), b"", 500)
        assert "status 200 instead of 400" in faults(refused, whole(choice()), 200)
        plain = dataclasses.replace(refused, has_error_body=False)
        assert not faults(plain, b"Invalid HTTP request received.", 400)


def stream(*events: Any, end: str = "data: [DONE]\n\n") -> bytes:
    return ("".join(f"data: {json.dumps(event)}\n\n" for event in events) + end).encode()


class TestStreams:
    def part(self, text: str, reason: str | None = None) -> dict[str, Any]:
        return {"choices": [choice(text, finish_reason=reason)], "usage": None}

    def test_pieces_are_put_together(self):
        made = request(stream=True)
        answer = read_answer(made, stream(self.part("a"), self.part("b", "length")))
        assert answer.choices[0].text == "ab"
        assert read_answer(request(), whole(choice())).comparable() == answer.comparable()

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (stream({"choices": []}, end=""), "no end"),
            (stream({"choices": []}, end="data: [DONE]\n"), "not a stream"),
            (b"", "not a stream"),
            (stream({"error": {"code": "timeout"}}, end=""), "timeout"),
            (stream({"choices": []}, end="data: {\n\n"), "not JSON"),
        ],
    )
    def test_broken_streams(self, body, words):
        with pytest.raises(WrongAnswerError, match=words):
            read_answer(request(stream=True), body)


_ZERO = (
    *("infopt_requests_running", "infopt_requests_waiting", "infopt_kv_pages_used"),
    *("infopt_requests_tracked", "infopt_requests_published", "infopt_streams_open"),
    *("infopt_http_requests_in_flight", "infopt_compiled_grammars"),
)
CLEAN = dict.fromkeys(_ZERO, 0.0) | {"infopt_event_loop_tasks": 3.0, "process_open_fds": 9.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"infopt_kv_pages_used": 1.0}, "left over: infopt_kv_pages_used is 1"),
        ({"infopt_event_loop_tasks": 4.0}, "grew: infopt_event_loop_tasks from 3 to 4"),
        ({"process_open_fds": 10.0}, "grew: process_open_fds from 9 to 10"),
        ({"infopt_compiled_grammars": 65.0}, "65 grammars are kept"),
        ({"process_resident_memory_bytes": 2.0**20 * 49}, None),
        ({"process_resident_memory_bytes": 2.0**20 * 51}, "memory grew by 51.0 MiB"),
    ],
)
def test_leaks(change, words):
    warm = CLEAN | {"process_resident_memory_bytes": 0.0}
    found = leaks({"before": CLEAN, "warm": warm, "after": CLEAN | change})
    assert found == [] if words is None else words in found[0]


class Fake:
    """A server that answers every request with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.seen, self.num_connections = answer, b"", 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        while data := await reader.read(65536):
            self.seen += data
            writer.write(self.answer)
            if b"close" in self.answer:
                break
        writer.close()

    async def run(self, use: Any) -> Any:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        async with server:
            return await use(Address(*server.sockets[0].getsockname()[:2]))


def http(body: bytes, *headers: str, status: int = 200) -> bytes:
    lines = [f"HTTP/1.1 {status} Text", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class TestClient:
    @pytest.mark.parametrize(
        "answer",
        [
            http(b"hello", "Content-Length: 5"),
            http(b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", "transfer-encoding: chunked"),
        ],
    )
    def test_bodies(self, answer):
        assert asyncio.run(Fake(answer).run(lambda a: get(a, "/"))) == (200, "hello")

    @pytest.mark.parametrize(
        "answer",
        [
            http(b"hell", "Content-Length: 5", "Connection: close"),
            http(b"2\r\nhe\r\n", "Transfer-Encoding: chunked", "Connection: close"),
            b"HTTP/1.1 200 close\r\n",
        ],
    )
    def test_an_answer_that_is_cut_is_an_error(self, answer):
        with pytest.raises(BrokenAnswerError):
            asyncio.run(Fake(answer).run(lambda a: get(a, "/")))

    def test_headers_replace_the_usual_ones(self):
        sent = post("/x", b"{}", {"Content-Length": "7"})
        assert sent.startswith(b"POST /x HTTP/1.1\r\n")
        assert sent.count(b"Content-Length: ") == 1
        assert b"Content-Length: 7\r\n" in sent
        assert sent.endswith(b"\r\n\r\n{}")

    def test_connections_are_kept_and_all_requests_are_sent(self):
        replies: list[Reply] = []
        fake = Fake(http(b"ok", "Content-Length: 2"))

        async def use(address: Address) -> None:
            made = [request_of(i, "plain", COMPLETIONS, {"prompt": "x"}) for i in range(9)]
            await send_all(address, made, concurrency=2, on_reply=replies.append)

        asyncio.run(fake.run(use))
        assert sorted(r.request.index for r in replies) == [*range(9)]
        assert {(r.status, r.body, r.fault) for r in replies} == {(200, b"ok", None)}
        assert fake.num_connections == 2

    def test_a_connection_that_breaks_is_a_fault_of_its_request(self):
        replies: list[Reply] = []
        fake = Fake(http(b"o", "Content-Length: 2", "Connection: close"))

        async def use(address: Address) -> None:
            made = [request_of(i, "plain", COMPLETIONS, {"prompt": "x"}) for i in range(2)]
            await send_all(address, made, concurrency=1, on_reply=replies.append)

        asyncio.run(fake.run(use))
        assert [r.status for r in replies] == [None, None]
        assert all("too early" in str(r.fault) for r in replies)

    def test_metrics_of_equal_names_are_added_up(self):
        text = b'# HELP a\na{m="x"} 1.0\na{m="y"} 2.5\nb 3\nc_bucket{le="1"} 4\n'
        fake = Fake(http(text, f"Content-Length: {len(text)}"))
        assert asyncio.run(fake.run(read_metrics)) == {"a": 3.5, "b": 3.0}

    def test_metrics_that_are_refused(self):
        fake = Fake(http(b"", "Content-Length: 0", status=401))
        with pytest.raises(MeasurementError, match="401"):
            asyncio.run(fake.run(read_metrics))


def test_a_slow_reader_makes_the_server_wait():
    """The client's buffers are small: a server cannot get rid of much more than is read."""
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.transport.set_write_buffer_limits(1)
        writer.write(http(b"", "Transfer-Encoding: chunked"))
        try:
            for _ in range(64):
                writer.write(b"40000\r\n" + b"x" * 2**18 + b"\r\n")
                await writer.drain()
                written += 1
        except ConnectionError:
            pass

    async def main() -> None:
        server = await asyncio.start_server(flood, "127.0.0.1", 0)
        async with server:
            address = Address(*server.sockets[0].getsockname()[:2])
            connection = await Connection.open(address, small_buffer=True)
            await connection.head()
            await asyncio.sleep(0.3)
            connection.close()

    asyncio.run(main())
    assert written < 60, "all 16 MiB went somewhere"


def test_a_server_that_does_not_start_tells_why():
    process = ServerProcess(["absent-slug"])
    try:
        with pytest.raises(MeasurementError, match="absent-slug"):
            process.wait_until_ready()
    finally:
        process.stop()


def test_exit_code(monkeypatch, capsys, tmp_path):
    metrics = {"before": CLEAN, "warm": CLEAN, "after": CLEAN}
    for found, code in (([], 0), (["request 7 (plain): wrong"], 1)):
        report = SoakReport(faults=found, metrics=metrics)
        monkeypatch.setattr(soak, "soak_model", lambda *_, made=report: made)
        out = tmp_path / "report.json"
        assert soak.main(["x", "--requests", "5", "--out", str(out)]) == code
        assert ("request 7 (plain): wrong" in capsys.readouterr().out) == bool(found)
        assert json.loads(out.read_text())["faults"] == found
