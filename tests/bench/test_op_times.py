"""Timing single ops inside a step, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams
from infopt.bench import op_times
from infopt.bench.op_times import BETWEEN, MIN_RUNS, OpTimer, StepKind, time_ops, timed_ops
from infopt.bench.roofline_ops import LAYER_OPS, OPS
from infopt.errors import MeasurementError

KIND = StepKind(num_seqs=3, num_cached=20)


@pytest.fixture(params=["llama", "gemma3_text"])
def llm(request: Any, tiny_model_dir: Callable[..., Path]) -> Iterator[LLM]:
    folder = tiny_model_dir(request.param)
    with LLM(str(folder), dtype="float32", max_num_seqs=4, max_num_batched_tokens=64) as llm:
        yield llm


class Ticks:
    """A clock that goes on by one second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.mark.parametrize("kind", [KIND, StepKind(1, 0, 40)])
def test_every_op_is_timed_once_per_layer(llm: LLM, kind: StepKind, monkeypatch) -> None:
    """Each call of an op takes one tick: so the ticks count the calls."""
    monkeypatch.setattr(op_times, "_clock_of", lambda device: Ticks())
    times = time_ops(llm.engine, kind, 0.0)
    assert times is not None
    layers = llm.model_config.num_layers
    assert times.num_runs == MIN_RUNS
    assert set(times.seconds) == {*OPS, BETWEEN}
    assert {op: times.seconds[op] for op in LAYER_OPS} == dict.fromkeys(LAYER_OPS, layers) | {
        "norm": 2 * layers + 1
    }
    assert times.seconds["head"] == times.seconds["sampling"] == 1
    num_calls = len(LAYER_OPS) * layers + layers + 1
    assert times.seconds[BETWEEN] == num_calls + 1  # two ticks a call, one of them inside
    assert times.whole_s == 3  # layers in one piece, head, sampling


def test_a_step_taken_apart_computes_the_same(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    prompts = [[5, 6, 7, 8], list(range(10, 45))]
    before = llm.generate(prompts, params, use_tqdm=False)
    with timed_ops(llm.engine.runner, Ticks()) as timer:
        llm.reset_prefix_cache()
        apart = llm.generate(prompts, params, use_tqdm=False)
    assert min(timer.seconds.values()) > 0
    assert [o.outputs[0].token_ids for o in apart] == [o.outputs[0].token_ids for o in before]


def test_nothing_is_left_behind(llm: LLM) -> None:
    runner = llm.engine.runner
    ops, choice = runner.model.ops, runner.model.describe_ops()
    assert time_ops(llm.engine, KIND, 0.0) is not None
    assert runner.model.ops is ops
    assert runner.model.describe_ops() == choice
    llm.engine.scheduler.check_integrity()
    assert llm.engine.cache.pool.num_used == 0
    assert not llm.engine.has_unfinished


def test_pages_return_when_a_step_fails(llm: LLM, monkeypatch) -> None:
    def fails(hidden: torch.Tensor) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(llm.engine.runner, "logit_blocks", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        time_ops(llm.engine, KIND, 0.0)
    assert llm.engine.cache.pool.num_used == 0


@pytest.mark.parametrize(
    "kind",
    [StepKind(5, 10), StepKind(2, 0, 33), StepKind(1, 512)],
    ids=["sequences", "tokens", "length"],
)
def test_a_step_that_the_engine_cannot_run_is_left_out(llm: LLM, kind: StepKind) -> None:
    assert time_ops(llm.engine, kind, 0.0) is None
    assert llm.engine.cache.pool.num_used == 0


def test_a_step_beyond_the_pool_is_left_out(tiny_model_dir: Callable[..., Path]) -> None:
    with LLM(str(tiny_model_dir("llama")), num_kv_pages=8, max_num_seqs=4) as llm:
        assert time_ops(llm.engine, StepKind(4, 47), 0.0) is None
        assert llm.engine.cache.pool.num_used == 0
        assert time_ops(llm.engine, StepKind(2, 47), 0.0) is not None


def test_time_is_split_among_the_ops_of_one_run() -> None:
    timer = OpTimer(Ticks())
    timer.timed("qkv", lambda: None)()
    first = timer.split({"layers": 9.0, "head": 2.0, "sampling": 1.0})
    assert (first["qkv"], first[BETWEEN], first["head"], first["norm"]) == (1.0, 8.0, 2.0, 0.0)
    assert sum(first.values()) == 12
    assert timer.split({"layers": 4.0})["qkv"] == 0.0


def test_experts_are_not_timed_one_by_one(tiny_model_dir) -> None:
    with (
        LLM(str(tiny_model_dir("mixtral")), dtype="float32", max_model_len=64) as llm,
        pytest.raises(MeasurementError, match="MoE"),
    ):
        time_ops(llm.engine, StepKind(1, 4), 0.1)
