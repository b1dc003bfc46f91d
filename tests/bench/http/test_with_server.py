"""The client against infopt's own server on loopback."""

from __future__ import annotations

import pytest

from infopt.bench.http import HttpLoad, connect, run_http_load
from infopt.bench.slo import SLO
from infopt.bench.workloads import build_workload

SPEC = {
    "kind": "synthetic",
    "num_requests": 6,
    "prompt_tokens": 12,
    "output_tokens": {"kind": "uniform", "min": 2, "max": 9},
    "arrivals": {"kind": "poisson", "rate": 100},
}


@pytest.mark.parametrize(
    ("endpoint", "form", "prompt_tokens"),
    [("completions", None, 72), ("completions", "text", None), ("chat", None, None)],
)
def test_every_token_is_accounted_for(
    server_url: str, endpoint: str, form: str | None, prompt_tokens: int | None
) -> None:
    with connect(f"{server_url}/v1/") as target:
        assert (target.model, target.tokenizer_source) == ("tiny", "server")
        requests = build_workload(SPEC, tokenizer=target.tokenizer, seed=3)
        load = HttpLoad(target, endpoint=endpoint, prompt_form=form)  # type: ignore[arg-type]
        result = run_http_load(load, requests, warmup=requests[:2])
    summary = result.summary(SLO(ttft_s=60))
    assert result.status_counts["completed"] == 6
    assert [r.num_output_tokens for r in result.records] == [r.max_tokens for r in requests]
    assert summary["num_output_tokens"] == sum(r.max_tokens for r in requests)
    assert prompt_tokens in (None, summary["num_prompt_tokens"])
    assert summary["client"]["token_counts"] == {"usage": 6}
    assert summary["latency"]["ttft_s"]["count"] == 6
    assert summary["latency"]["itl_s"]["count"] == sum(r.max_tokens - 1 for r in requests)
    assert summary["latency"]["queue_s"]["count"] == 0  # the server does not say
    assert summary["goodput"]["num_met"] == 6
    assert (summary["transport"], summary["num_steps"]) == ("http", None)
    assert len(result.warmup) == 2
