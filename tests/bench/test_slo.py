import pytest

from infopt.bench.latency import Chunk, RequestTiming
from infopt.bench.slo import PRESETS, SLO, evaluate_slo
from infopt.errors import ConfigError, WorkloadError


def timing(ttft_s: float, gaps_s: tuple[float, ...] = (), status="completed") -> RequestTiming:
    times = [ttft_s]
    for gap in gaps_s:
        times.append(times[-1] + gap)
    chunks = tuple(Chunk(t, 1) for t in times)
    return RequestTiming(scheduled_s=0.0, chunks=chunks, finished_s=times[-1], status=status)


def test_goodput_is_the_share_that_meets_every_limit() -> None:
    slo = SLO(ttft_s=0.2, tpot_s=0.05)
    good, slow_start, slow_flow = timing(0.1, (0.04,)), timing(0.3, (0.04,)), timing(0.1, (0.06,))
    report = evaluate_slo(slo, [good, slow_start, slow_flow, good], duration_s=2.0)
    assert report.num_met == 2
    assert report.goodput_share == 0.5
    assert report.goodput_requests_per_s == 1.0
    assert report.num_misses == {"ttft_s": 1, "tpot_s": 1}


def test_failed_requests_are_misses() -> None:
    """Pins a goodput over completed requests only, which rises when requests fail."""
    failed = RequestTiming(scheduled_s=0.0, status="failed")
    report = evaluate_slo(SLO(ttft_s=1.0), [timing(0.1)] * 3 + [failed], duration_s=1.0)
    assert report.num_requests == 4
    assert report.goodput_share == 0.75
    assert report.num_misses == {"ttft_s": 1}
    assert report.is_met is False


def test_one_token_answers_meet_a_limit_per_token() -> None:
    assert SLO(tpot_s=0.01).misses(timing(5.0)) == []


def test_gap_limit_allows_the_share_that_the_percentile_leaves() -> None:
    gaps = (0.01,) * 98 + (1.0,) * 2
    assert SLO(itl_s=0.1, percentile=99).misses(timing(0.1, gaps)) == ["itl_s"]
    assert SLO(itl_s=0.1, percentile=98).misses(timing(0.1, gaps)) == []


def test_attainment_is_unknown_for_small_samples() -> None:
    slo = SLO(ttft_s=0.2)
    few = evaluate_slo(slo, [timing(0.1)] * 99, duration_s=1.0)
    assert few.attained == {"ttft_s": None}
    assert few.is_met is None
    enough = evaluate_slo(slo, [timing(0.1)] * 100, duration_s=1.0)
    assert enough.attained["ttft_s"] == pytest.approx(0.1)
    assert enough.is_met is True
    late = evaluate_slo(slo, [timing(0.1)] * 95 + [timing(0.9)] * 5, duration_s=1.0)
    assert late.is_met is False


def test_nothing_measured_is_not_met() -> None:
    report = evaluate_slo(SLO(ttft_s=0.2), [], duration_s=None)
    assert (report.goodput_share, report.goodput_requests_per_s, report.is_met) == (None,) * 3


def test_presets() -> None:
    assert SLO.from_spec("chat") == SLO(ttft_s=0.2, itl_s=0.05)
    assert SLO.from_spec("agentic").limits == {"e2e_s": 5.0}
    assert PRESETS.names() == [
        "agentic", "chat", "code-generation", "completion", "content", "retrieval"
    ]  # fmt: skip


def test_plain_data_round_trip() -> None:
    slo = SLO(ttft_s=0.3, e2e_s=2.0, percentile=90)
    assert SLO.from_spec(slo.to_dict()) == slo


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("chatt", ConfigError, "Did you mean 'chat'"),
        ({"ttft": 1}, ConfigError, "Did you mean 'ttft_s'"),
        ({"ttft_s": 0}, WorkloadError, "ttft_s must be a positive number, got 0"),
        ({}, WorkloadError, "at least one limit"),
        ({"percentile": 99}, WorkloadError, "at least one limit"),
        ({"e2e_s": 1, "percentile": 100}, WorkloadError, "below 100"),
    ],
)
def test_bad_objectives_are_refused(spec, error, message) -> None:
    with pytest.raises(error, match=message):
        SLO.from_spec(spec)
