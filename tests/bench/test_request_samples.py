"""Latencies of single requests, as flat lists and back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infopt.bench.latency import Chunk, RequestTiming
from infopt.bench.request_samples import PARTNER, runs_of_samples, samples_of_requests
from infopt.bench.slo import SLO, evaluate_slo
from infopt.errors import ResultError


def timing(ttft_s: float, gaps_s: tuple[float, ...] = (), status="completed") -> RequestTiming:
    times = [ttft_s]
    for gap in gaps_s:
        times.append(times[-1] + gap)
    chunks = tuple(Chunk(t, 1) for t in times)
    return RequestTiming(scheduled_s=0.0, chunks=chunks, finished_s=times[-1], status=status)


@dataclass
class Run:
    duration_s: float
    timings: list[RequestTiming]


def run(duration_s: float, *timings: RequestTiming) -> Run:
    return Run(duration_s, list(timings))


FAILED = RequestTiming(scheduled_s=0.0, status="failed")
TIMES = st.integers(1, 2000).map(lambda ms: ms / 1000)
TIMINGS = st.builds(
    timing,
    TIMES,
    st.lists(TIMES, max_size=5).map(tuple),
    st.sampled_from(["completed", "completed", "aborted"]),
)
RUNS = st.lists(
    st.builds(lambda duration, ts: run(duration, *ts), TIMES, st.lists(TIMINGS, max_size=6)),
    min_size=1,
    max_size=4,
)
LIMITS = st.integers(1, 4000).map(lambda ms: ms / 2000 + 1e-4)  # between the clock's ticks


@given(runs=RUNS, ttft=LIMITS, tpot=LIMITS, itl=LIMITS, percent=st.sampled_from([50, 90, 95]))
def test_a_run_read_back_is_judged_like_the_run_itself(runs, ttft, tpot, itl, percent) -> None:
    slo = SLO(ttft_s=ttft, tpot_s=tpot, itl_s=itl, percentile=percent)
    read = runs_of_samples(samples_of_requests(runs))
    assert read is not None and len(read) == len(runs)
    for before, after in zip(runs, read, strict=True):
        first = evaluate_slo(slo, before.timings, before.duration_s)
        second = evaluate_slo(slo, after.requests, after.duration_s)
        assert (second.num_met, second.num_misses) == (first.num_met, first.num_misses)
        assert second.is_met == first.is_met
        assert second.goodput_requests_per_s == pytest.approx(first.goodput_requests_per_s)


def test_the_lists_by_hand() -> None:
    runs = [run(2.0, timing(0.1, (0.2, 0.3)), FAILED), run(1.0, timing(0.5))]
    assert samples_of_requests(runs) == {
        "runs.duration_s": [2.0, 1.0],
        "requests.run": [0, 0, 1],
        "requests.is_completed": [1, 0, 1],
        "requests.num_gaps": [2, 0, 0],
        "requests.gap_s": [0.2, 0.3],
        "requests.ttft_s": [0.1, None, 0.5],
        "requests.tpot_s": [0.25, None, None],
        "requests.e2e_s": [0.6, None, 0.5],
    }


def test_two_arms_share_a_record() -> None:
    own, partner = run(1.0, timing(0.1)), run(2.0, timing(0.3), timing(0.4))
    samples = {**samples_of_requests([own]), **samples_of_requests([partner], PARTNER)}
    first, second = runs_of_samples(samples), runs_of_samples(samples, PARTNER)
    assert first is not None and second is not None
    assert [len(arm[0].requests) for arm in (first, second)] == [1, 2]
    assert second[0].requests[1].ttft_s == 0.4


@pytest.mark.parametrize("samples", [None, {}, {"output_tokens_per_s": [1.0]}])
def test_records_without_them_say_so(samples) -> None:
    assert runs_of_samples(samples) is None


@pytest.mark.parametrize("name", ["requests.gap_s", "requests.ttft_s", "requests.num_gaps"])
def test_lists_that_do_not_belong_together_are_refused(name) -> None:
    samples = samples_of_requests([run(1.0, timing(0.1, (0.2,)), timing(0.1))])
    with pytest.raises(ResultError, match="different lengths"):
        runs_of_samples({**samples, name: samples[name][:-1]})
    del samples[name]
    with pytest.raises(ResultError, match=name):
        runs_of_samples(samples)
