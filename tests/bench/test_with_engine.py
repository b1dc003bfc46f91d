"""Load generators, latencies and roofline on the real engine with a small random model."""

# pyright: reportOptionalOperand=false, reportOperatorIssue=false

from collections.abc import Iterator

import pytest

from infopt.bench.closed import run_batch, run_closed_loop
from infopt.bench.openloop import run_open_loop
from infopt.bench.roofline import MachinePeaks
from infopt.bench.roofline_log import summarize_roofline
from infopt.bench.slo import SLO
from infopt.bench.step_cost import Precision, step_cost
from infopt.bench.workloads import build_workload
from infopt.llm import LLM
from infopt.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def llm(tiny_model_dir) -> Iterator[LLM]:
    with LLM(
        str(tiny_model_dir("llama")),
        dtype="float32",
        num_threads=1,
        max_num_seqs=4,
        kv_cache_memory_gib=0.01,
        max_num_waiting=20,
    ) as model:
        yield model


def workload(llm: LLM, **changes):
    spec = {
        "kind": "synthetic",
        "num_requests": 10,
        "prompt_tokens": {"kind": "uniform", "min": 5, "max": 40},
        "output_tokens": {"kind": "uniform", "min": 1, "max": 6},
    }
    return build_workload(spec | changes, tokenizer=llm.tokenizer, seed=5)


def test_a_batch_does_the_work_of_the_workload(llm: LLM) -> None:
    requests = workload(llm)
    result = run_batch(llm, requests)
    assert result.status_counts["completed"] == 10
    assert [len(o.outputs[0].token_ids) for o in result.outputs] == [r.max_tokens for r in requests]
    summary = result.summary(SLO(e2e_s=600))
    assert summary["num_output_tokens"] == sum(r.max_tokens for r in requests)
    assert summary["goodput"]["goodput_share"] == 1.0
    assert summary["latency"]["ttft_s"]["count"] == 10
    assert summary["throughput_tokens_per_s"] > 0
    computed = sum(s.num_prefill_tokens for s in result.step_log)
    assert computed == sum(len(r.prompt_token_ids) for r in requests)


def test_runs_repeat_their_tokens_and_leave_nothing_behind(llm: LLM) -> None:
    first, again = (run_batch(llm, workload(llm)) for _ in range(2))
    assert [o.outputs[0].token_ids for o in first.outputs] == [
        o.outputs[0].token_ids for o in again.outputs
    ]
    assert first.summary()["num_cached_tokens"] == again.summary()["num_cached_tokens"] == 0
    assert not llm.engine.has_unfinished
    assert llm.engine.step_log is None


def test_open_loop_on_the_real_clock(llm: LLM) -> None:
    requests = workload(llm, arrivals={"kind": "poisson", "rate": 50})
    result = run_open_loop(llm, requests, warmup=2, max_duration_s=60)
    assert result.status_counts["completed"] == 8
    for timing in result.timings:
        assert timing.scheduled_s <= timing.dispatched_s <= timing.started_s
        assert 0 <= timing.queue_s <= timing.ttft_s <= timing.e2e_s
        assert len(timing.itl_s) == timing.num_output_tokens - 1


def test_shared_prefixes_are_found_in_the_cache(llm: LLM) -> None:
    spec = {
        "kind": "shared-prefix",
        "num_requests": 6,
        "num_groups": 2,
        "prefix_tokens": 64,
        "suffix_tokens": 8,
        "output_tokens": 2,
    }
    requests = build_workload(spec, tokenizer=llm.tokenizer)
    summary = run_closed_loop(llm, requests, concurrency=1).summary()
    assert summary["num_cached_tokens"] == 4 * 64
    assert summary["cache_hit_rate"] == pytest.approx(4 * 64 / (6 * 72))
    warm = run_closed_loop(llm, requests, concurrency=1, reset_prefix_cache=False).summary()
    assert warm["num_cached_tokens"] > summary["num_cached_tokens"]


def test_refusals_of_the_engine_are_counted(llm: LLM) -> None:
    requests = workload(llm, num_requests=3, prompt_tokens=600)
    result = run_batch(llm, requests)
    assert result.status_counts["failed"] == 3
    assert result.summary()["errors"] == {"PromptTooLongError": 3}
    assert run_batch(llm, workload(llm)).status_counts["completed"] == 10


def test_a_cut_run_frees_its_requests(llm: LLM) -> None:
    result = run_batch(llm, workload(llm, output_tokens=200), max_duration_s=0.01)
    assert result.was_cut
    assert result.status_counts["unfinished"] > 0
    assert not llm.engine.has_unfinished
    assert run_batch(llm, workload(llm)).status_counts["completed"] == 10


def test_several_completions_per_request(llm: LLM) -> None:
    params = SamplingParams(n=2, temperature=1.0, ignore_eos=True, seed=1)
    requests = workload(llm, num_requests=2, output_tokens=3)
    summary = run_batch(llm, requests, params).summary()
    assert summary["num_output_tokens"] == 2 * 2 * 3
    assert summary["num_completed"] == 2


def test_counted_work_of_one_prompt(llm: LLM) -> None:
    """The engine's own counters give the closed formulas for a prefill of T tokens and a decode."""
    tokens = 20
    requests = workload(llm, num_requests=1, prompt_tokens=tokens, output_tokens=2)
    prefill, decode = run_batch(llm, requests).step_log
    config, precision = llm.model_config, Precision(4, 4)
    layer = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 128
    cost = step_cost(prefill, config, precision)
    assert cost.linear_flops == 2 * (3 * layer * tokens + 320 * 64)
    assert cost.attention_flops == 4 * 3 * 64 * tokens * (tokens + 1) / 2
    assert cost.kv_write_bytes == tokens * config.kv_bytes_per_token(4)
    cost = step_cost(decode, config, precision)
    assert cost.linear_flops == 2 * (3 * layer + 320 * 64)
    assert cost.attention_flops == 4 * 3 * 64 * (tokens + 1)
    assert cost.kv_read_bytes == (tokens + 1) * config.kv_bytes_per_token(4)
    summary = summarize_roofline([prefill, decode], config, precision, MachinePeaks(1e10, 1e11))
    assert summary.total.predicted_s < summary.total.measured_s
