"""Workloads at a rate, for a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infopt.bench.rates import at_rate, build_for
from infopt.errors import WorkloadError

SPEC = {"kind": "synthetic", "num_requests": 3, "prompt_tokens": 4, "output_tokens": 2}


def test_rate_replaces_that_of_the_workload() -> None:
    own = {**SPEC, "arrivals": {"kind": "gamma", "rate": 1, "cv": 3}}
    assert at_rate(own, 5)["arrivals"] == {"kind": "gamma", "rate": 5, "cv": 3}
    assert at_rate(SPEC, 5)["arrivals"] == {"kind": "poisson", "rate": 5}
    assert at_rate({**SPEC, "arrivals": "all-at-once"}, 5)["arrivals"]["kind"] == "poisson"
    burst = {"kind": "burst", "burst_size": 2}
    assert at_rate(own, 5, arrivals=burst)["arrivals"] == {**burst, "rate": 5}


@pytest.mark.parametrize("arrivals", [{"kind": "poisson"}, {"kind": "gamma", "cv": 3.0}])
def test_duration_decides_the_number_of_requests(arrivals: dict[str, Any]) -> None:
    requests = build_for(at_rate(SPEC, 50, arrivals=arrivals), 4.0, vocab_size=50, seed=2)
    assert requests[-1].arrival_s <= 4.0
    more = build_for(at_rate(SPEC, 50, arrivals=arrivals), 8.0, vocab_size=50, seed=2)
    assert sum(r.arrival_s <= 4.0 for r in more) == len(requests)
    assert len(more) > len(requests) > 60
    assert len(build_for(SPEC, None, vocab_size=50)) == 3


def test_a_trace_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"2024-01-01 00:00:0{i}.0,5,2" for i in range(6)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    spec = {"kind": "trace", "path": str(path)}
    assert [r.arrival_s for r in build_for(spec, 2.5, vocab_size=50)] == [0, 1, 2]
    faster = at_rate(spec, 4)  # recorded at 1 request/s
    assert [r.arrival_s for r in build_for(faster, 0.6, vocab_size=50)] == [0, 0.25, 0.5]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows[:1]]) + "\n")
    with pytest.raises(WorkloadError, match="no rate"):
        at_rate(spec, 3)


def test_what_has_no_rate_has_no_duration() -> None:
    with pytest.raises(WorkloadError, match="needs a rate"):
        build_for(SPEC, 2.0, vocab_size=50)
    with pytest.raises(WorkloadError, match="duration"):
        build_for(at_rate(SPEC, 1), 0.0, vocab_size=50)
