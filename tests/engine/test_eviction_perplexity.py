"""Attention sinks on a real model: what a pure window loses, and what four tokens bring back.

Text is decoded token by token with a constraint that allows the right one only, so that evictions
come as in generation; log-probabilities are those of the raw logits.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from infopt import LLM, SamplingParams
from infopt.corpus import docs_text

WINDOW, PROMPT, LENGTH = 64, 48, 350


class Forced:
    """Allows one text."""

    is_terminated = False

    def __init__(self, token_ids: list[int], vocab_size: int) -> None:
        self._left = list(reversed(token_ids))
        self._mask = torch.zeros(vocab_size, dtype=torch.bool)

    def allowed(self) -> torch.Tensor:
        self._mask.zero_()
        self._mask[self._left[-1]] = True
        return self._mask

    def accept(self, token_id: int) -> bool:
        return self._left.pop() == token_id

    def rollback(self, num_tokens: int) -> None:
        raise AssertionError("nothing is guessed here")


def test_a_window_without_sinks_forgets_how_to_read(smollm2_path: Any) -> None:
    llm = LLM(str(smollm2_path), preemption="swap", max_model_len=1024, kv_cache_memory_gib=0.2)
    tokens = llm.tokenizer.encode(docs_text())[:LENGTH]
    text, vocab_size = tokens[PROMPT:], llm.model_config.vocab_size
    arms = {"full": {"method": "none"}}
    for sinks in (0, 4):
        arms[f"{sinks} sinks"] = {
            "method": "streaming",
            "sinks": sinks,
            "budget_tokens": WINDOW,
            "interval_pages": 1,
        }
    for name, eviction in arms.items():
        params = SamplingParams(
            temperature=0,
            max_tokens=len(text),
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            kv_eviction=eviction,
        )
        llm.engine.add_request(
            name, tokens[:PROMPT], params, constraint=lambda: Forced(text, vocab_size)
        )
    outputs = {}
    while llm.engine.has_unfinished:
        outputs |= {output.request_id: output.outputs[0] for output in llm.engine.step()}
    losses = {
        name: [-entry[t].logprob for t, entry in zip(text, output.logprobs, strict=True)]
        for name, output in outputs.items()
    }
    assert all(output.token_ids == text for output in outputs.values())
    first = WINDOW + 16 - PROMPT  # where the first eviction takes the first token away
    for name in ("0 sinks", "4 sinks"):
        assert losses[name][: first + 1] == losses["full"][: first + 1]
    after = {
        name: math.exp(sum(row[first + 1 :]) / (len(text) - first - 1))
        for name, row in losses.items()
    }
    # The window also takes text away that could be looked up, hence more than the full perplexity.
    assert after["0 sinks"] > 3 * after["full"], after
    assert after["4 sinks"] < 1.5 * after["full"], after
