"""The networks: transformers' own classes, so that what is trained is what others load."""

from __future__ import annotations

from typing import Any

import torch

from infopt.models.quiet import quiet_transformers
from infopt.training.recipes import MAX_POSITIONS, VOCAB_SIZE, Recipe

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": MAX_POSITIONS,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
    "use_cache": True,
    "attn_implementation": "sdpa",
}


def build_model(recipe: Recipe, seed: int) -> Any:
    """Return a model with random float32 weights; torch's own random state is left as it was."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        config = CONFIG_MAPPING[recipe.model_type](**_COMMON, **recipe.architecture)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def num_parameters(model: torch.nn.Module) -> int:
    """Return the number of weights; a tied head counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def num_active_parameters(model: Any) -> int:
    """Return the weights that one token reads: of the routed experts only those it goes to."""
    config = model.config
    num_experts = getattr(config, "num_experts", None)
    if num_experts is None:
        return num_parameters(model)
    routed = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    return num_parameters(model) - routed + routed * config.num_experts_per_tok // num_experts
