"""Schedules, latencies and waits on a clock whose seconds take no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infopt.bench.arrivals import arrival_times
from infopt.bench.http.openloop import Progress, run_async
from infopt.bench.slo import SLO
from infopt.errors import MeasurementError, WorkloadError

ROUNDING = 1e-6


def near(*values: float) -> Any:
    return pytest.approx(list(values), abs=ROUNDING)


def test_latencies_of_chunks_with_several_tokens(
    run_virtually: Any, make_requests: Any, answer_of: Any
) -> None:
    """Counting chunks as tokens gave other gaps and another time per token."""
    script = answer_of((0.10, "a"), (0.14, "bcd"), (0.20, "efg"), tokens=7)
    result = run_virtually(make_requests([0.0], max_tokens=7), lambda _: script)
    timing = result.timings[0]
    assert timing.num_output_tokens == 7
    assert [timing.ttft_s, timing.tpot_s, timing.e2e_s] == near(0.1, 0.1 / 6, 0.2)
    assert timing.itl_chunk_s == near(0.04, 0.06)
    assert timing.itl_s == near(*[0.04 / 3] * 3, *[0.06 / 3] * 3)


def test_one_token_has_no_time_per_token(
    run_virtually: Any, make_requests: Any, answer_of: Any
) -> None:
    result = run_virtually(make_requests([0.0]), lambda _: answer_of((0.1, "a"), tokens=1))
    assert result.timings[0].tpot_s is None
    assert result.latency.ttft.count == 1


def test_latencies_count_from_the_schedule(
    run_virtually: Any, make_requests: Any, answer_of: Any
) -> None:
    """Counted from the sending, or by the server, the queue is invisible (coordinated omission)."""
    script = answer_of((0.0, "a"), (1.5, "b"), tokens=2)
    requests = make_requests([0.0, 1.0, 2.0])
    in_server = run_virtually(requests, lambda _: script, num_workers=1)
    in_client = run_virtually(requests, lambda _: script, max_concurrency=1)
    for result in (in_server, in_client):
        assert [t.ttft_s for t in result.timings] == near(0.0, 0.5, 1.0)
        assert [t.e2e_s for t in result.timings] == near(1.5, 2.0, 2.5)
    assert [t.e2e_from_dispatch_s for t in in_client.timings] == near(1.5, 1.5, 1.5)
    assert in_client.waits_s == near(0.0, 0.5, 1.0)
    assert in_server.waits_s == near(0.0, 0.0, 0.0)
    assert any("2 of 3 requests waited in the client" in w for w in in_client.warnings)
    assert in_client.lags_s == near(0.0, 0.0, 0.0)  # full connections do not make the client late


def test_offered_rate_is_kept_and_a_slow_server_is_told(
    run_virtually: Any, make_requests: Any, answer_of: Any, rng: Any
) -> None:
    """A client that waited for answers sent fewer requests per second than it was asked for."""
    arrivals = arrival_times({"kind": "poisson", "rate": 50}, 500, rng(1))
    assert arrivals == arrival_times({"kind": "poisson", "rate": 50}, 500, rng(1))
    requests = make_requests(arrivals, max_tokens=1)
    instant = run_virtually(requests, lambda _: answer_of((0.0, "a"), tokens=1))
    assert instant.dispatched_rate_per_s == pytest.approx(instant.offered_rate_per_s)
    assert instant.offered_rate_per_s == pytest.approx(50, rel=0.1)
    assert instant.warnings == []
    slow = run_virtually(requests, lambda _: answer_of((0.5, "a"), tokens=1), max_concurrency=4)
    assert slow.achieved_rate_per_s == pytest.approx(8, rel=0.01)
    assert any("achieved 8" in text for text in slow.warnings)
    assert slow.status_counts["completed"] == 500


def test_warm_up_ends_before_the_schedule_begins(
    run_virtually: Any, make_requests: Any, answer_of: Any
) -> None:
    """Slow first requests of a cold server were in the percentiles of the run."""
    requests = make_requests([0.02 * i for i in range(100)])

    def script(index: int) -> Any:
        return answer_of((5.0 if index < 4 else 0.05, "abcd"), tokens=4)

    result = run_virtually(requests, script, warmup=make_requests([0.0] * 4), max_concurrency=4)
    assert (len(result.records), len(result.warmup)) == (100, 4)
    assert [w.timing.e2e_s for w in result.warmup] == near(5, 5, 5, 5)
    assert result.latency.e2e.p99 == pytest.approx(0.05, abs=ROUNDING)


def test_reasoning_and_tool_calls_are_first_tokens_too(
    run_virtually: Any, make_requests: Any, sse: Any
) -> None:
    """Requests whose first token was no content had no time to first token."""

    def chunk(**delta: Any) -> bytes:
        return sse({"choices": [{"index": 0, "delta": delta}]})

    end = sse({"choices": [], "usage": {"completion_tokens": 2}}, "[DONE]")
    role = chunk(role="assistant", content="")
    thinks, speaks = chunk(reasoning_content="r"), chunk(content="c")
    call = [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]
    scripts = [
        [(0.0, role), (0.1, thinks), (1.0, speaks), (1.0, end)],
        [(0.2, chunk(tool_calls=call)), (0.2, end)],
    ]
    result = run_virtually(make_requests([0.0, 0.0]), lambda i: scripts[i], endpoint="chat")
    first, second = result.timings
    assert [first.ttft_s, first.first_content_s, second.ttft_s] == near(0.1, 1.0, 0.2)
    assert second.first_content_s is None
    assert result.latency.ttft.count == result.status_counts["completed"] == 2


def test_lengths_asked_and_got_are_reported(
    run_virtually: Any, make_requests: Any, answer_of: Any
) -> None:
    requests = make_requests([0.0, 1.0], max_tokens=4)
    scripts = [answer_of((0.1, "ab"), tokens=2), answer_of((0.1, "abcd"), tokens=4)]
    result = run_virtually(requests, lambda i: scripts[i])
    client = result.summary()["client"]
    assert (client["num_asked_tokens"], client["num_got_tokens"]) == (8, 6)
    assert client["num_short_answers"] == 1
    assert any("6 output tokens came where 8 were asked for" in w for w in result.warnings)


def test_a_server_that_does_not_count_is_named(
    run_virtually: Any, make_requests: Any, answer_of: Any
) -> None:
    script = answer_of((0.1, "a"), (0.2, "b"), tokens=None)
    result = run_virtually(make_requests([0.0], max_tokens=2), lambda _: script)
    assert result.summary()["client"]["token_counts"] == {"pieces": 1}
    assert any("gave no token counts" in text for text in result.warnings)


def test_a_late_client_says_so(run_virtually: Any, make_requests: Any, answer_of: Any) -> None:
    script = answer_of((0.1, "abcd"), tokens=4)
    result = run_virtually(make_requests([0.0, 1.0]), lambda _: script)
    assert result.warnings == []
    result.records[1].ready_s += 0.05
    assert any("client itself was late, by up to 50 ms" in text for text in result.warnings)


def test_time_out_and_guard_are_told_apart(
    run_virtually: Any, make_requests: Any, answer_of: Any
) -> None:
    requests = make_requests([0.0, 1.0])
    scripts = [answer_of((0.1, "ab"), (9.0, "c"), tokens=3), answer_of((0.5, "abcd"), tokens=4)]
    timed_out = run_virtually(requests, lambda i: scripts[i], timeout_s=2.0)
    assert [r.status for r in timed_out.records] == ["failed", "completed"]
    assert timed_out.summary()["errors"] == {"timeout": 1}
    cut = run_virtually(requests, lambda i: scripts[i], max_duration_s=1.2)
    assert [r.status for r in cut.records] == ["unfinished", "unfinished"]
    assert cut.was_cut
    assert cut.duration_s == pytest.approx(1.2, abs=ROUNDING)
    assert cut.evaluate(SLO(ttft_s=9)).num_met == 0


def test_the_end_of_the_body_is_not_waited_for_long(
    run_virtually: Any, make_requests: Any, answer_of: Any
) -> None:
    script = [*answer_of((0.5, "abcd"), tokens=4), (500.0, b": still here\n\n")]
    result = run_virtually(make_requests([0.0]), lambda _: script)
    assert result.status_counts["completed"] == 1
    assert result.duration_s == pytest.approx(0.5, abs=ROUNDING)


def test_body_of_a_request(run_virtually: Any, make_requests: Any, target: Any) -> None:
    import json

    from infopt.bench.http.load import HttpLoad

    request = make_requests([0.0], max_tokens=5)[0]
    body = json.loads(HttpLoad(target, extra={"top_k": 1}).body(request))
    assert body == {
        "model": "m",
        "prompt": [65, 66],
        "max_tokens": 5,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "top_k": 1,
    }
    chat = json.loads(HttpLoad(target, "chat", respect_eos=True).body(request))
    assert chat["messages"] == [{"role": "user", "content": "AB"}]
    assert "ignore_eos" not in chat
    for options in ({"endpoint": "chat", "prompt_form": "ids"}, {"endpoint": "chats"}):
        with pytest.raises(WorkloadError, match="chat"):
            HttpLoad(target, **options)


def test_progress_is_told(run_virtually: Any, make_requests: Any, answer_of: Any, sse: Any) -> None:
    seen: list[tuple[int, int, int]] = []

    def note(p: Progress) -> None:
        seen.append((p.num_in_flight, p.num_finished, p.num_failed))

    scripts = [answer_of((2.0, "abcd"), tokens=4), [(0.5, sse({"error": "x"}))]]
    run_virtually(make_requests([0.0, 1.0]), lambda i: scripts[i], on_progress=note)
    assert seen == [(1, 0, 0), (2, 0, 0), (1, 0, 1), (0, 1, 1)]


def test_unanswered_warm_up_ends_the_run_at_once(
    run_virtually: Any, make_requests: Any, sse: Any
) -> None:
    with pytest.raises(MeasurementError, match="error event: no such model"):
        run_virtually(
            make_requests([0.0]),
            lambda _: [(0.0, sse({"error": {"message": "no such model"}}))],
            warmup=make_requests([0.0, 0.0]),
        )


def test_runs_inside_another_event_loop() -> None:
    """A notebook's event loop is running when a cell starts a load."""

    async def inner() -> int:
        return 7

    async def outer() -> int:
        return run_async(inner())

    assert run_async(outer()) == 7


@pytest.fixture
def rng() -> Callable[[int], Any]:
    import numpy as np

    return np.random.default_rng
