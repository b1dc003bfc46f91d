import pytest

from infopt.bench.latency import Chunk, RequestTiming, summarize_latency


def ms(value: float | None) -> float | None:
    return None if value is None else round(value * 1000, 6)


def test_several_tokens_per_chunk() -> None:
    """Pins a confusion of two averages: the gap per chunk and the time per token."""
    timing = RequestTiming(
        scheduled_s=0.0, chunks=(Chunk(0.10, 1), Chunk(0.14, 3), Chunk(0.20, 3)), finished_s=0.2
    )
    assert timing.num_output_tokens == 7
    assert ms(timing.ttft_s) == 100
    assert ms(timing.tpot_s) == pytest.approx(16.667, abs=1e-3)
    assert [ms(g) for g in timing.itl_chunk_s] == [40, 60]
    assert [ms(g) for g in timing.itl_s] == pytest.approx([40 / 3] * 3 + [20] * 3)
    assert sum(timing.itl_s) / len(timing.itl_s) == pytest.approx(timing.tpot_s)


def test_tokens_of_the_first_chunk_come_together() -> None:
    timing = RequestTiming(scheduled_s=0.0, chunks=(Chunk(0.1, 3), Chunk(0.3, 1)))
    assert timing.itl_s == pytest.approx([0, 0, 0.2])
    assert timing.tpot_s == pytest.approx(0.2 / 3)


def test_the_servers_token_count_wins_over_the_number_of_chunks() -> None:
    """Pins a count of chunks where the server reported usage."""
    chunks = (Chunk(0.1, 1), Chunk(0.2, 1))
    timing = RequestTiming(scheduled_s=0.0, chunks=chunks, num_reported_tokens=11)
    assert timing.num_output_tokens == 11
    assert timing.tpot_s == pytest.approx(0.01)


def test_one_token_has_no_time_per_token() -> None:
    """Pins a division by n - 1 = 0 that became 0 or infinity in averages."""
    timing = RequestTiming(scheduled_s=0.0, chunks=(Chunk(0.1, 1),), finished_s=0.1)
    assert timing.tpot_s is None
    summary = summarize_latency([timing] * 3)
    assert summary.tpot.count == 0
    assert summary.tpot.mean is None
    assert summary.ttft.count == 3


def test_a_request_without_a_token_has_no_first_token() -> None:
    """Pins a huge negative TTFT of requests that ended without any token."""
    no_tokens = (Chunk(100.2, 0),)
    empty = RequestTiming(scheduled_s=100.0, chunks=no_tokens, finished_s=100.2, status="empty")
    broken = RequestTiming(scheduled_s=100.0, status="failed")
    good = RequestTiming(scheduled_s=100.0, chunks=(Chunk(100.3, 2),), finished_s=100.3)
    assert empty.ttft_s is None
    assert broken.ttft_s is None
    summary = summarize_latency([empty, broken, good, good])
    assert summary.ttft.count == 2
    assert summary.ttft.p50 == pytest.approx(0.3)


def test_reasoning_and_tool_tokens_are_first_tokens() -> None:
    """Pins a TTFT that waited for content, and a tool-only answer without a TTFT."""
    thinking = RequestTiming(
        scheduled_s=0.0,
        chunks=(Chunk(0.05, 0), Chunk(0.1, 4, is_content=False), Chunk(1.0, 1)),
        finished_s=1.0,
    )
    tool_only = RequestTiming(
        scheduled_s=0.0, chunks=(Chunk(0.2, 9, is_content=False),), finished_s=0.2
    )
    assert ms(thinking.ttft_s) == 100
    assert ms(thinking.first_content_s) == 1000
    assert ms(tool_only.ttft_s) == 200
    assert tool_only.first_content_s is None
    assert summarize_latency([thinking, tool_only]).ttft.count == 2


def test_latency_counts_from_the_schedule_and_from_dispatch_apart() -> None:
    timing = RequestTiming(
        scheduled_s=1.0, dispatched_s=1.5, started_s=1.6, chunks=(Chunk(2.0, 1),), finished_s=3.0
    )
    assert (timing.ttft_s, timing.ttft_from_dispatch_s) == (1.0, 0.5)
    assert (timing.e2e_s, timing.e2e_from_dispatch_s) == (2.0, 1.5)
    assert timing.queue_s == pytest.approx(0.6)


def test_summary_names_carry_the_unit() -> None:
    assert list(summarize_latency([]).to_dict()) == [
        "ttft_s", "tpot_s", "itl_s", "itl_chunk_s", "e2e_s", "queue_s", "ttft_from_dispatch_s",
        "e2e_from_dispatch_s",
    ]  # fmt: skip
