"""The benchmark of quantized pages runs what it says, and gives everything back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from infopt import LLM
from infopt.bench.kv_pages import DecodeStep, main, measure
from infopt.errors import MeasurementError


def test_each_format_is_compared_with_auto(tiny_model_dir: Callable[..., Path]) -> None:
    result = measure(
        str(tiny_model_dir("llama")),
        ["int8", "int2"],
        num_seqs=2,
        num_cached=200,
        repeats=3,
        memory_gib=0.01,
        dtype="float32",
    )
    assert result.reference == "auto"
    assert set(result.samples) == {"auto", "int8", "int2"}
    assert set(result.ratios) == {"int8", "int2"}
    assert all(len(samples) == 3 for samples in result.samples.values())


def test_old_rows_are_quantized_and_pages_come_back(tiny_model_dir: Callable[..., Path]) -> None:
    folder = str(tiny_model_dir("llama"))
    with LLM(folder, dtype="float32", kv_cache_dtype="int8", enable_prefix_caching=False) as llm:
        step = DecodeStep(llm.engine, 3, 300)
        pages = llm.stats()["pages"]
        # 300 // 16 - 8 = 10 pages are read quantized: 3 row groups; 9 full ones are left.
        assert pages["quantized"]["used"] == 3 * 3
        assert pages["used"] == 3 * 9
        assert step.seconds() > 0
        step.close()
        pages = llm.stats()["pages"]
        assert pages["used"] == pages["quantized"]["used"] == 0


def test_pools_that_are_too_small_are_an_error(tiny_model_dir: Callable[..., Path]) -> None:
    with (
        LLM(str(tiny_model_dir("llama")), dtype="float32", num_kv_pages=20) as llm,
        pytest.raises(MeasurementError, match="do not hold the sequences"),
    ):
        DecodeStep(llm.engine, 2, 300)


def test_the_command_prints_lines_and_json(
    tiny_model_dir: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tiny_model_dir("llama"))
    sizes = ["--num-seqs", "1", "--num-cached", "150", "--repeats", "2", "--memory-gib", "0.01"]
    main(["--model", folder, "--dtypes", "int4", "--dtype", "float32", *sizes])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("auto") and "int4" in lines[1]
    assert set(json.loads(lines[-1])["ratios"]) == {"int4"}
