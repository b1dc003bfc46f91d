"""llm-compressor: int4 by round-to-nearest, GPTQ and AWQ; all linear layers but the head."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

PACKAGES = ("llmcompressor", "compressed-tensors", "transformers", "torch")
BITS = 4
GROUP_SIZE = 64
IGNORED = ("lm_head",)


def _load(module: str) -> Any:
    """Import a module that only the oracle's environment has."""
    return importlib.import_module(module)


def _target() -> dict[str, Any]:
    """Return what is quantized, and to what: symmetric codes in groups."""
    scheme = _load("compressed_tensors.quantization")
    weights = scheme.QuantizationArgs(
        num_bits=BITS, type="int", symmetric=True, strategy="group", group_size=GROUP_SIZE
    )
    group = scheme.QuantizationScheme(targets=["Linear"], weights=weights)
    return {"config_groups": {"group_0": group}, "ignore": list(IGNORED)}


def _rtn() -> list[Any]:
    return [_load("llmcompressor.modifiers.quantization").QuantizationModifier(**_target())]


def _gptq(**options: Any) -> list[Any]:
    return [_load("llmcompressor.modifiers.gptq").GPTQModifier(**_target(), **options)]


def _awq() -> list[Any]:
    if not torch.accelerator.is_available():
        # Version 0.14.0.1 pins memory for copies to a GPU, which raises where there is none.
        _load("llmcompressor.pipelines.cache").IntermediatesCache.pin_memory = _do_nothing
    return [_load("llmcompressor.modifiers.transform.awq").AWQModifier(), *_rtn()]


def _do_nothing(*_: object) -> None:
    pass


RECIPES: dict[str, Callable[[], list[Any]]] = {
    "rtn": _rtn,
    "gptq": lambda: _gptq(actorder=None),
    "gptq-act": lambda: _gptq(actorder="static"),
    "awq": _awq,
}
"""Methods with their defaults; GPTQ's is to round columns with large inputs first."""


def run(job: Any) -> dict[str, Any]:
    """Return the perplexity of the float model and of each method's."""
    perplexity = {"float": job.perplexity(job.model())}
    for name, recipe in RECIPES.items():
        perplexity[name] = job.perplexity(quantized(job, recipe()))
    settings = {"bits": BITS, "group_size": GROUP_SIZE, "symmetric": True, "ignored": IGNORED}
    return {"settings": settings, "perplexity": perplexity}


def quantized(job: Any, recipe: list[Any]) -> Any:
    """Return the model quantized; it computes with the values of the codes, in float32."""
    rows = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in job.calibration]
    model = job.model()
    _load("llmcompressor").oneshot(
        model=model,
        tokenizer=job.folder,
        recipe=recipe,
        dataset=DataLoader(cast(Any, rows), batch_size=1),
        num_calibration_samples=len(rows),
        max_seq_length=job.calibration.shape[1],
    )
    return model
