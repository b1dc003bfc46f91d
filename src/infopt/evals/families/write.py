"""Writes a small random checkpoint of a family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from infopt.evals.families.cases import COMMON, FamilyCase
from infopt.models.quiet import quiet_transformers

_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "pos_emb_height": 2,
    "pos_emb_width": 2,
}


def write_checkpoint(case: FamilyCase, folder: Path, seed: int = 0) -> None:
    """Write float32 safetensors and config.json, as transformers does.

    Args:
        case: The family.
        folder: An empty folder.
        seed: Chooses the weights.
    """
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        model = _build(case)
        _randomize(model)
        model.float().save_pretrained(folder)
    path = folder / "config.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(raw | {"model_type": case.family}), encoding="utf-8")


def _build(case: FamilyCase) -> Any:
    import transformers

    configs: Any = transformers.CONFIG_MAPPING
    values = {k: v for k, v in (COMMON | case.changes).items() if k not in _dropped(case)}
    name = case.written_as or case.family
    if case.kind == "vision":
        config = configs[name](text_config=values, vision_config=_VISION, tie_word_embeddings=False)
        return transformers.AutoModelForImageTextToText.from_config(config)
    return transformers.AutoModelForCausalLM.from_config(configs[name](**values))


def _dropped(case: FamilyCase) -> set[str]:
    """Values of `COMMON` that a family has no field for."""
    return {name for name, value in case.changes.items() if value is None}


@torch.no_grad()
def _randomize(model: torch.nn.Module) -> None:
    """Spread weights out, so that logits are far apart and whatever is left out shows."""
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            weight.add_(0.2 * torch.randn_like(weight))
        else:  # a tied embedding multiplies twice, and Gemma caps what is too large
            scale = 0.04 if tied and "embed" in name else 0.12
            weight.copy_(scale * torch.randn_like(weight))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.1 * torch.randn_like(buffer))
