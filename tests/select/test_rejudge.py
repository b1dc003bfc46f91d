"""Another objective over what was measured: goodput counted anew, or said to be unknown."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pytest

from infopt.bench.latency import Chunk, RequestTiming
from infopt.bench.request_samples import PARTNER, samples_of_requests
from infopt.bench.slo import SLO
from infopt.results import flatten_record
from infopt.select import choose
from infopt.select.rejudge import NOT_JUDGED, judge_again

OLD = SLO(ttft_s=0.2, percentile=90)
GOODPUT = "slo.goodput_requests_per_s"


@dataclass
class Run:
    duration_s: float
    timings: list[RequestTiming]


def runs(*ttfts_s: tuple[float, ...]):
    """Runs of one second each whose requests have these times to the first token."""
    return [
        Run(
            duration_s=1.0,
            timings=[
                RequestTiming(scheduled_s=0.0, chunks=(Chunk(t, 1),), finished_s=t) for t in times
            ],
        )
        for times in ttfts_s
    ]


FAST = runs(*[(0.1, 0.1, 0.3, 0.5)] * 6)
SLOW = runs(*[(0.1, 0.3, 0.3, 0.5)] * 6)


def served(make_served, own, partner=None, goodput=2.0):
    """Sections of a run as it was recorded under the old objective."""
    sections = make_served(goodput, interval=(goodput, goodput))
    sections["slo"] = {"name": "own", "limits": OLD.to_dict(), "goodput_requests_per_s": goodput}
    sections["samples"] = samples_of_requests(own)
    if partner is not None:
        sections["samples"] |= samples_of_requests(partner, PARTNER)
        pair = {"median": 9.0, "low": 9.0, "high": 9.0, "num_pairs": 6, "verdict": "better"}
        pair["reference"] = "b"
        sections["comparison"] = {"goodput_requests_per_s": pair, "ttft_s": {**pair, "median": 3}}
    return sections


@pytest.mark.parametrize(("limit", "per_s"), [(0.05, 0.0), (0.25, 2.0), (0.4, 3.0), (1.0, 4.0)])
def test_goodput_is_counted_by_hand(make_run, make_served, limit, per_s):
    record = make_run("a", **served(make_served, FAST, goodput=2.0))
    found = judge_again(record, SLO(ttft_s=limit, percentile=90), "mine")
    assert found.slo["goodput_requests_per_s"] == per_s
    assert found.slo["goodput_share"] == per_s / 4
    assert (found.slo["num_requests"], found.slo["num_met"]) == (24, 6 * per_s)
    assert found.slo["limits"]["ttft_s"] == limit
    ends = dict.fromkeys(("estimate", "low", "high"), per_s)
    assert found.intervals[GOODPUT] == {**ends, "count": 6}
    assert record.slo["goodput_requests_per_s"] == 2.0, "the record itself stays"


def test_the_paired_ratio_follows(make_run, make_served):
    record = make_run("a", **served(make_served, FAST, SLOW))
    found = judge_again(record, SLO(ttft_s=0.15)).comparison["goodput_requests_per_s"]
    assert (found["median"], found["low"], found["high"]) == (2.0, 2.0, 2.0)
    assert (found["verdict"], found["num_pairs"], found["reference"]) == ("better", 6, "b")
    assert judge_again(record, SLO(ttft_s=0.15)).comparison["ttft_s"]["median"] == 3


def test_no_ratio_where_a_run_has_no_goodput(make_run, make_served):
    record = make_run("a", **served(make_served, FAST, SLOW))
    found = judge_again(record, SLO(ttft_s=0.01))
    assert "goodput_requests_per_s" not in found.comparison


def test_the_same_objective_changes_nothing(make_run, make_served):
    record = make_run("a", **served(make_served, FAST, SLOW))
    assert judge_again(record, OLD) is record
    failed = make_run("b", status="failed", failure={"message": "no"}, quality=None)
    assert judge_again(failed, SLO(ttft_s=9)) is failed


def test_a_record_without_samples_says_that_its_goodput_is_unknown(make_run, make_served):
    """Pins: goodput under the old objective was shown as if it were that under the new one."""
    known = make_run("known", **served(make_served, SLOW))
    blind = make_run("blind", config={"max_num_seqs": 4}, **served(make_served, FAST, SLOW))
    blind = blind.replace(samples={"ttft_s": [0.1]})
    slo = SLO(ttft_s=0.4, percentile=50)
    records = [judge_again(record, slo) for record in (known, blind)]
    rows = [flatten_record(record) for record in records]
    assert rows[1].get(GOODPUT) is None
    assert f"intervals.{GOODPUT}.low" not in rows[1]
    assert "comparison.goodput_requests_per_s.median" not in rows[1]
    assert "no latencies of single requests" in rows[1][NOT_JUDGED]
    found = choose(pd.DataFrame(rows), slo, None)
    assert found.run == "batching/known"
    (other,) = found.rejected
    assert other.run == "batching/blind" and "is unknown" in other.reasons[0]
    # Where goodput decides nothing, the evidence leaves it out and a note says why.
    throughput = {**known.throughput, "output_tokens_per_s": 1.0}
    fast = {**blind.throughput, "output_tokens_per_s": 2.0}
    rows = [
        flatten_record(judge_again(record.replace(throughput=numbers), slo))
        for record, numbers in ((known, throughput), (blind, fast))
    ]
    found = choose(pd.DataFrame(rows), slo, None, objective="throughput")
    assert found.run == "batching/blind"
    assert GOODPUT not in [entry.column for entry in found.evidence]
    assert any("Goodput under this objective is unknown" in note for note in found.notes)
