"""kvpress: which keys and values of a prompt stay, by layer and key head."""

from __future__ import annotations

import importlib
from typing import Any

import torch

PACKAGES = ("kvpress", "transformers", "torch")
NUM_PROMPTS = 4
RATIO = 0.5  # evicted
WINDOW = 32
PRESSES: dict[str, tuple[str, dict[str, Any]]] = {
    "streaming": ("StreamingLLMPress", {}),
    "knorm": ("KnormPress", {}),
    "tova": ("TOVAPress", {}),
    "snapkv": ("SnapKVPress", {"window_size": WINDOW}),
    "expected_attention": ("ExpectedAttentionPress", {}),
}
"""Our method -> their press and the options that are not their defaults."""


def run(job: Any) -> dict[str, Any]:
    """Return the prompts and what each press keeps of them."""
    model, prompts = job.model(), job.calibration[:NUM_PROMPTS]
    kept = {name: [_kept(model, name, ids) for ids in prompts] for name in PRESSES}
    return {
        "settings": {"budget": 1 - RATIO, "window": WINDOW},
        "prompts": [" ".join(map(str, ids.tolist())) for ids in prompts],
        "kept": kept,
    }


def _kept(model: Any, name: str, ids: torch.Tensor) -> list[list[str]]:
    """Return per layer and key head the rows that stay, and how clear the decision was."""
    cls, options = PRESSES[name]
    press = getattr(importlib.import_module("kvpress"), cls)(compression_ratio=RATIO, **options)
    score, compress, scores, layers = press.score, press.compress, [], []

    def spy_score(*args: Any, **kwargs: Any) -> torch.Tensor:
        scores.append(score(*args, **kwargs))
        return scores[-1]

    def spy_compress(module: Any, hidden: Any, keys: torch.Tensor, *rest: Any) -> Any:
        left = compress(module, hidden, keys, *rest)
        heads = zip(scores[-1][0], left[0][0], keys[0], strict=True)
        layers.append([_head(*head) for head in heads])
        return left

    press.score, press.compress = spy_score, spy_compress
    with torch.no_grad(), press(model):
        model(ids[None], use_cache=True)
    return layers


def _head(scores: torch.Tensor, left: torch.Tensor, keys: torch.Tensor) -> str:
    """Return what is left of one head: a bit per row, and the gap to the best row that went."""
    rows = torch.cdist(left[None].double(), keys[None].double())[0].argmin(1).tolist()
    assert len(set(rows)) == len(rows), "a key occurs twice"
    last, gone = scores.sort(descending=True).values[len(rows) - 1 : len(rows) + 1].tolist()
    gap = (last - gone) / max(abs(last), abs(gone))
    return f"{sum(1 << row for row in rows):x} {gap:.1e}"
