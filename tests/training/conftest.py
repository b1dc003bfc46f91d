"""One tokenizer and one tokenized corpus for all tests, and recipes that train in a second."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from infopt.training.recipes import Recipe, recipe_of
from infopt.training.text import TokenizedCorpus, tokenize_corpus, train_tokenizer

_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
_SMALL_MOE = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The tokenizer of the family."""
    return train_tokenizer()


@pytest.fixture(scope="session")
def tokenized(tokenizer: Any) -> TokenizedCorpus:
    """The corpus in its tokens."""
    return tokenize_corpus(tokenizer)


@pytest.fixture(scope="session")
def small_recipe() -> Callable[[str], Recipe]:
    """Factory of the family's recipes with fewer weights and fewer tokens per step."""

    def make(name: str = "tiny-dense", **changes: Any) -> Recipe:
        recipe = recipe_of(name)
        moe = _SMALL_MOE if recipe.model_type == "qwen2_moe" else {}
        architecture = {**recipe.architecture, **_SMALL, **moe}
        sizes = {"tokens_per_step": 256, "context": 32, "long_context": 64}
        return dataclasses.replace(recipe, architecture=architecture, **(sizes | changes))

    return make
