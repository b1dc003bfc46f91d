"""Each press keeps what kvpress keeps, on the same weights and the same tokens.

`make oracles` records what kvpress keeps, in an environment of its own.
"""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import LLM, SamplingParams
from infopt.engine.eviction import Evictor
from infopt.models.fingerprint import content_identity
from infopt.models.registry import resolve_model

MODEL = "tiny-dense"
EXPECTED = Path(__file__).parents[1] / "data" / "oracles" / "kvpress.json"
OPTIONS: dict[str, dict[str, Any]] = {
    "streaming": {"decode": False},
    "knorm": {},
    "tova": {"decode": False},
    "snapkv": {"window": 32},
    "expected_attention": {},
}
NEAR_TIE = 1e-4
"""Relative gap between the last row that stays and the first that goes, below which float32 may
decide either way. (Keys of the first layer depend on their token alone, so equal tokens have keys
of equal length.)"""


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found = json.loads(EXPECTED.read_text("utf-8"))
    identity = content_identity(resolve_model(MODEL).path)
    assert found["model"]["identity"] == identity, "another model now: run `make oracles`"
    assert found["settings"] == {"budget": 0.5, "window": 32}
    assert set(found["kept"]) == set(OPTIONS)
    return found


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(MODEL, dtype="float32", preemption="swap", max_num_batched_tokens=96, max_num_seqs=4)


@pytest.mark.parametrize("method", OPTIONS)
def test_the_same_rows_stay(
    recorded: dict[str, Any], llm: LLM, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours: dict[str, torch.Tensor] = {}
    real = Evictor._choose

    def choose(self: Evictor, sequence: Any, state: Any, group: int) -> torch.Tensor:
        ours[sequence.request_id] = real(self, sequence, state, group)
        return ours[sequence.request_id]

    monkeypatch.setattr(Evictor, "_choose", choose)
    prompts = [[int(token) for token in text.split()] for text in recorded["prompts"]]
    eviction = {"method": method, "budget": 0.5, **OPTIONS[method]}
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, kv_eviction=eviction)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    num_heads = num_near = num_rows = 0
    for output, layers in zip(outputs, recorded["kept"][method], strict=True):
        rows = ours[output.request_id]
        assert rows.shape[:2] == (len(layers), len(layers[0]))
        for head, text in zip(rows.flatten(0, 1).tolist(), chain(*layers), strict=True):
            num_heads += 1
            bits, gap = text.split()
            theirs = [row for row in range(256) if int(bits, 16) >> row & 1]
            assert len(head) == len(theirs) == 128
            if head != theirs:
                num_near += 1
                assert float(gap) < NEAR_TIE, f"{set(head) ^ set(theirs)} differ, not for a tie"
                num_rows += len(set(head) - set(theirs))
    print(f"{method}: {num_near} of {num_heads} heads differ in near-ties, by {num_rows} rows")
    assert num_rows <= num_heads * 128 // 500
