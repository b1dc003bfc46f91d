"""The benchmark of compressed pages runs what it says, and gives everything back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from infopt import LLM
from infopt.bench.kv_pages import main, measure
from infopt.bench.kv_steps import LayerStep, RunningRequests, most_reading_steps
from infopt.engine.engine import Engine
from infopt.errors import MeasurementError


def test_each_way_is_compared_with_auto(tiny_model_dir: Callable[..., Path]) -> None:
    found = dict(
        measure(
            str(tiny_model_dir("llama")),
            ["int8", "auto+snapkv:0.25"],
            num_seqs=2,
            num_cached=200,
            repeats=3,
            memory_gib=0.01,
            dtype="float32",
        )
    )
    assert set(found) == {"layers", "whole steps"}
    for result in found.values():
        assert result.reference == "auto"
        assert set(result.ratios) == {"int8", "auto+snapkv:0.25"}
        assert all(len(samples) == 3 for samples in result.samples.values())


def test_old_rows_are_quantized_and_pages_come_back(tiny_model_dir: Callable[..., Path]) -> None:
    folder = str(tiny_model_dir("llama"))
    with LLM(folder, dtype="float32", kv_cache_dtype="int8", enable_prefix_caching=False) as llm:
        step = LayerStep(llm.engine, 3, 300)
        pages = llm.stats()["pages"]
        # 300 // 16 - 8 = 10 pages are read quantized: 3 row groups; 9 full ones are left.
        assert pages["quantized"]["used"] == 3 * 3
        assert pages["used"] == 3 * 9
        assert step.seconds() > 0
        step.close()
        pages = llm.stats()["pages"]
        assert pages["used"] == pages["quantized"]["used"] == 0


EVICTING = {
    "dtype": "float32",
    "enable_prefix_caching": False,
    "preemption": "swap",
    "kv_eviction": {"method": "snapkv", "budget": 0.25},
}


def test_the_layers_read_the_rows_that_an_eviction_leaves(
    tiny_model_dir: Callable[..., Path],
) -> None:
    with LLM(str(tiny_model_dir("llama")), **EVICTING) as llm:
        step = LayerStep(llm.engine, 3, 300)
        assert llm.stats()["pages"]["used"] == 3 * 5  # 75 rows and one more
        assert step.seconds() > 0
        step.close()
        llm.engine.check_integrity()
        assert llm.stats()["pages"]["used"] == 0


def test_running_requests_have_been_evicted_from_and_decode_together(
    tiny_model_dir: Callable[..., Path],
) -> None:
    with LLM(str(tiny_model_dir("llama")), max_num_seqs=3, **EVICTING) as llm:
        requests = RunningRequests(llm.engine, 3, 300, 4)
        assert llm.engine.stats.num_evictions == 3
        llm.engine.step_log = log = []
        for _ in range(4):
            assert requests.seconds() > 0
        assert [(s.num_decode_tokens, s.num_prefill_tokens) for s in log] == [(3, 0)] * 4
        requests.close()
        llm.engine.check_integrity()
        assert llm.stats()["pages"]["used"] == 0


def test_more_steps_than_announced_are_an_error(tiny_model_dir: Callable[..., Path]) -> None:
    with LLM(str(tiny_model_dir("llama")), dtype="float32") as llm:
        requests = RunningRequests(llm.engine, 1, 20, 2)
        with pytest.raises(MeasurementError, match="0 of 1 requests decode together"):
            for _ in range(2 + most_reading_steps(1, 20, llm.config.max_num_batched_tokens)):
                requests.seconds()


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        (lambda engine: LayerStep(engine, 2, 300), "do not hold the sequences"),
        (lambda engine: RunningRequests(engine, 2, 200, 4), "1 of 2 requests decode together"),
    ],
    ids=["layers", "requests"],
)
def test_pools_that_are_too_small_are_an_error(
    tiny_model_dir: Callable[..., Path], step: Callable[[Engine], object], fault: str
) -> None:
    with (
        LLM(str(tiny_model_dir("llama")), dtype="float32", num_kv_pages=20) as llm,
        pytest.raises(MeasurementError, match=fault),
    ):
        step(llm.engine)


def test_a_batch_without_room_for_prompts_is_refused() -> None:
    assert most_reading_steps(16, 3000, 512) == 16 * 7 + 1
    with pytest.raises(MeasurementError, match="max_num_batched_tokens=16 leaves no room"):
        most_reading_steps(16, 3000, 16)


def test_the_command_prints_lines_and_json(
    tiny_model_dir: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tiny_model_dir("llama"))
    sizes = ["--num-seqs", "1", "--num-cached", "150", "--repeats", "2", "--memory-gib", "0.01"]
    main(["int4", "--model", folder, "--dtype", "float32", *sizes])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "layers" and lines[1].startswith("auto") and "int4" in lines[2]
    found = json.loads(lines[-1])
    assert found["num_cached"] == 150
    assert set(found["layers"]["ratios"]) == set(found["whole steps"]["ratios"]) == {"int4"}
