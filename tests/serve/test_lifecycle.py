"""Hanging up, time limits, full queues, failures, shutting down."""

from __future__ import annotations

import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

COMPLETIONS = "/v1/completions"
LONG = {"prompt": [5, 6], "max_tokens": 400, "ignore_eos": True}


def begin(server: Any, **body: Any) -> socket.socket:
    """Send a request over a bare socket and leave the answer unread."""
    connection = socket.create_connection(server.server.address, timeout=20)
    data = json.dumps(body).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


class TestHangingUp:
    """Generation went on to max_tokens after the client had gone, and kept its place."""

    @pytest.fixture
    def one_by_one(self, start_server, slow):
        server = start_server({"max_num_seqs": 1})
        slow(server.engine, 0.01)
        return server

    @pytest.mark.parametrize("streams", [True, False])
    def test_running_and_queued(self, one_by_one, streams, wait):
        server, scheduler = one_by_one, one_by_one.engine.scheduler
        running = begin(server, **LONG, stream=streams)
        wait(lambda: scheduler.running)
        queued = begin(server, **LONG, stream=streams)
        wait(lambda: scheduler.waiting)
        queued.close()
        wait(lambda: not scheduler.waiting)
        assert scheduler.running
        running.close()
        wait(lambda: not scheduler.running)
        server.wait_idle()
        assert server.engine.stats.num_finished == {"abort": 2}
        assert server.engine.stats.num_generated_tokens < 200
        server.complete([5], max_tokens=1)


class TestLimits:
    def test_full_queue(self, start_server, slow, wait):
        server = start_server({"max_num_seqs": 1, "max_num_waiting": 1})
        slow(server.engine, 0.01)
        first = begin(server, **LONG)
        wait(lambda: server.engine.scheduler.running)
        second = begin(server, **LONG)
        wait(lambda: server.engine.scheduler.waiting)
        for streams in (False, True):
            answer = server.post(COMPLETIONS, **LONG, stream=streams)
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["type"] == "rate_limit_error"
        first.close()
        second.close()
        server.wait_idle()

    def test_time_limit(self, start_server, slow):
        server = start_server(request_timeout_s=0.3)
        slow(server.engine, 0.02)
        answer = server.post(COMPLETIONS, **LONG)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "timeout"
        events = server.stream(COMPLETIONS, **LONG)
        assert events[-1]["error"]["code"] == "timeout"
        assert len(events) > 1
        server.wait_idle()


class TestFailingEngine:
    def test_only_the_requests_of_the_step_end(self, start_server, monkeypatch, wait):
        """A failure after the first tokens looked like the end of a good answer."""
        server = start_server()
        hidden, calls = server.engine.runner.hidden, []

        def fail_third(ctx: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                raise RuntimeError("broken on purpose")
            return hidden(ctx)

        monkeypatch.setattr(server.engine.runner, "hidden", fail_third)
        events = server.stream(COMPLETIONS, **LONG)
        assert len(events) == 3
        assert events[-1]["error"]["type"] == "server_error"
        assert all(c["finish_reason"] is None for e in events[:-1] for c in e["choices"])
        assert server.complete([5], max_tokens=1)["choices"]
        calls[:] = [1, 1]
        answer = server.post(COMPLETIONS, prompt=[5, 6], max_tokens=4)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_failed")
        assert "broken on purpose" not in answer.text
        server.wait_idle()

    def test_scheduler_that_fails_for_ever(self, start_server, monkeypatch):
        """A failure that ends nobody would be met again in every step."""
        server = start_server()
        schedule = server.engine.scheduler.schedule

        def broken() -> Any:
            raise AssertionError("broken on purpose")

        monkeypatch.setattr(server.engine.scheduler, "schedule", broken)
        assert server.post(COMPLETIONS, prompt=[5]).status_code == 500
        monkeypatch.setattr(server.engine.scheduler, "schedule", schedule)
        assert server.complete([5], max_tokens=1)["choices"]

    def test_bug_in_a_route(self, server, monkeypatch):
        def broken(*_: Any) -> Any:
            raise KeyError("secret")

        monkeypatch.setattr(server.tokenizer, "render_chat_template", broken)
        answer = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}])
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal_error"
        assert "secret" not in answer.text


class TestShutdown:
    """A signal dropped all requests in progress."""

    def drain(self, server: Any) -> None:
        server.server.handle_exit(signal.SIGTERM, None)

    def test_running_requests_finish_and_new_ones_do_not_start(self, start_server, slow, wait):
        server = start_server({"max_num_seqs": 2})
        slow(server.engine, 0.01)
        with ThreadPoolExecutor(3) as pool:
            body = {"prompt": [5, 6], "max_tokens": 60, "ignore_eos": True}
            running = [pool.submit(server.complete, **body) for _ in range(3)]
            wait(lambda: server.engine.scheduler.waiting)
            self.drain(server)
            wait(lambda: server.service.state == "draining")
            refused = server.post(COMPLETIONS, prompt=[5])
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            assert server.http.get("/health").status_code == 503
            assert [f.result()["usage"]["completion_tokens"] for f in running] == [60] * 3
        wait(lambda: server.server.should_exit)

    def test_no_grace(self, start_server, slow, wait):
        server = start_server(grace_s=0)
        slow(server.engine, 0.01)
        with ThreadPoolExecutor(1) as pool:
            stream = pool.submit(server.stream, COMPLETIONS, **LONG)
            wait(lambda: server.engine.stats.num_generated_tokens > 3)
            self.drain(server)
            events = stream.result()
        assert events[-1]["error"]["code"] == "shutting_down"
        assert not any(c["finish_reason"] for e in events[:-1] for c in e["choices"])

    def test_second_signal_stops_at_once(self, start_server, slow, wait):
        server = start_server(grace_s=60)
        slow(server.engine, 0.01)
        connection = begin(server, **LONG, stream=True)
        wait(lambda: server.engine.scheduler.running)
        self.drain(server)
        self.drain(server)
        wait(lambda: not server.thread.is_alive())
        assert "length" not in server.engine.stats.num_finished
        connection.close()


KEY = {"authorization": "Bearer secret"}
PREFLIGHT = {"origin": "http://a.example", "access-control-request-method": "POST"}


class TestAccess:
    @pytest.fixture
    def guarded(self, start_server):
        return start_server(api_key="secret", cors_origins=("http://a.example",))

    def test_key(self, guarded):
        http, body = guarded.http, {"prompt": [5], "max_tokens": 1}
        origin = {"origin": "http://a.example"}
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            answer = http.post(COMPLETIONS, json=body, headers=origin | headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"
            assert answer.headers["access-control-allow-origin"] == "http://a.example"
        assert http.post(COMPLETIONS, json=body, headers=KEY).status_code == 200
        assert http.get("/health").status_code == 200
        assert http.get("/metrics").status_code == 401
        assert http.get("/v1/models").status_code == 401

    def test_preflight_needs_no_key_but_options_does(self, guarded):
        """Browsers send no key with a preflight; an exemption for all of OPTIONS is too wide."""
        answer = guarded.http.options(COMPLETIONS, headers=PREFLIGHT)
        assert answer.status_code == 200
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert guarded.http.options(COMPLETIONS).status_code == 401
        assert guarded.http.options(COMPLETIONS, headers=KEY).status_code == 405
        other = PREFLIGHT | {"origin": "http://b.example"}
        assert guarded.http.options(COMPLETIONS, headers=other).status_code == 400

    def test_no_cors_by_default(self, server):
        answer = server.http.get("/health", headers={"origin": "http://a.example"})
        assert "access-control-allow-origin" not in answer.headers
