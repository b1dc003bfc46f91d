"""Layers that do nothing are found and left out; the choice is kept and comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams
from infopt.errors import DraftModelError
from infopt.speculative.skip_search import SkipSearch

COMMON: dict[str, Any] = {
    "dtype": "float32",
    "backend": "reference",  # a cache folder of its own has no compiled kernels
    "max_model_len": 128,
    "num_kv_pages": 200,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFOPT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def idle_layers(tiny_model_dir: Callable[..., Path], tmp_path: Path) -> Path:
    """A Llama of six layers, of which 2 and 3 add nothing."""
    import shutil

    from safetensors.torch import load_file, save_file

    folder = tmp_path / "idle"
    shutil.copytree(tiny_model_dir("llama", num_hidden_layers=6), folder)
    weights = load_file(folder / "model.safetensors")
    for layer in (2, 3):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"model.layers.{layer}.{name}.weight"].zero_()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_layers_that_do_nothing_are_left_out(idle_layers: Path, tmp_path: Path) -> None:
    early = {"method": "early_exit", "num_speculative_tokens": 4}
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    with LLM(str(idle_layers), **COMMON) as llm:
        (expected,) = llm.generate([[5, 6, 7, 8]], params, use_tqdm=False)
    facts: dict[str, Any] = {}
    for _ in range(2):
        with LLM(str(idle_layers), speculative=early, check_integrity=True, **COMMON) as llm:
            facts = llm.stats()["drafter"]
            assert {2, 3} <= set(facts["skip_layers"])
            assert facts["search"]["num_tried"] > 4
            (output,) = llm.generate([[5, 6, 7, 8]], params, use_tqdm=False)
            assert output.outputs[0].token_ids == expected.outputs[0].token_ids
            if facts["skip_layers"] == [2, 3]:
                assert facts["search"]["alpha"] == 1.0
                assert llm.stats()["speculative"]["acceptance_rate"] == 1.0
    (kept,) = (tmp_path / "cache" / "early_exit").iterdir()
    assert json.loads(kept.read_text("utf-8"))["choice"]["skip_layers"] == facts["skip_layers"]


def test_places_read_rows_of_the_whole_model(idle_layers: Path) -> None:
    """Alpha of a set is the share found by cutting the text at each place and computing it anew."""
    text = torch.randint(4, 320, (100,), generator=torch.Generator().manual_seed(0)).tolist()
    with LLM(str(idle_layers), **COMMON) as llm:
        search = SkipSearch(llm.engine.runner, [text], 200, 4)
        assert search.num_places == 6
        assert search.judge((2, 3)).alpha == 1.0
        logits = llm.logits(text)
        rows = [16 * place for place in range(1, 7)]
        assert search._expected == [int(logits[row].argmax()) for row in rows]
        assert search.judge((0, 1, 2)).alpha < 1.0
        cost = search.judge((2, 3)).cost
        assert 0.6 < cost < 0.75


def test_too_few_pages_are_refused_by_name(idle_layers: Path) -> None:
    with pytest.raises(DraftModelError, match="3 pages are too few"):
        LLM(str(idle_layers), speculative={"method": "early_exit"}, **COMMON | {"num_kv_pages": 3})


@pytest.mark.parametrize("layers", [[6], [0, 1, 2, 3, 4, 5]])
def test_layers_that_leave_nothing_are_refused(idle_layers: Path, layers: list[int]) -> None:
    speculative = {"method": "early_exit", "skip_layers": layers}
    with pytest.raises(DraftModelError, match="skip_layers"):
        LLM(str(idle_layers), speculative=speculative, **COMMON)


def test_pages_for_guesses_are_not_those_of_the_pool(idle_layers: Path) -> None:
    """They are in the budget, and no request gets one."""
    options = COMMON | {"num_kv_pages": None, "kv_cache_memory_gib": 0.0005, "max_num_seqs": 4}
    speculative = {"method": "early_exit", "skip_layers": [2], "num_speculative_tokens": 20}
    with LLM(str(idle_layers), **options) as plain:
        alone = plain.stats()
    with LLM(str(idle_layers), speculative=speculative, **options) as llm:
        both = llm.stats()
        # 20 rows behind a text touch at most 3 pages of 16.
        assert both["num_kv_pages"] == alone["num_kv_pages"] - 4 * 3
        assert both["memory"]["kv_pool_bytes"] == alone["memory"]["kv_pool_bytes"]
        assert llm.engine.cache.pool.num_pages == both["num_kv_pages"]
