"""The models in the package: learned, small, and the same in the engine as in transformers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from infopt import LLM, SamplingParams, corpus
from infopt.models.registry import list_models, resolve_model
from infopt.training import LEARNED_SHARE, RECIPES
from infopt.training.bigram import Bigram
from infopt.training.recipes import VOCAB_SIZE
from infopt.training.text import KINDS, TokenizedCorpus, tokenize_corpus
from infopt.training.tiny import RECORD_NAME, load_float32
from infopt.training.validation import cut_windows, routing_shares, validate

MAX_SHIPPED_BYTES = 10 * 10**6
NAMES = sorted(RECIPES)
IN_ENGINE = NAMES


def folder_of(name: str) -> Path:
    return resolve_model(name, show_progress=False).path


@pytest.fixture(scope="module")
def reference() -> Callable[[str], Any]:
    """Factory of the shipped models in transformers, float32."""
    made: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name not in made:
            made[name] = load_float32(folder_of(name))
        return made[name]

    return make


@pytest.fixture(scope="module")
def tokenized() -> TokenizedCorpus:
    """The corpus in the tokens of the shipped models, whatever text this Python has."""
    return tokenize_corpus(Tokenizer.from_file(str(folder_of("tiny-dense") / "tokenizer.json")))


@pytest.fixture(scope="module")
def bigram(tokenized: TokenizedCorpus) -> Bigram:
    return Bigram(tokenized.train, VOCAB_SIZE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_it_has_learned_its_language(
    reference: Callable[[str], Any],
    tokenized: TokenizedCorpus,
    bigram: Bigram,
    name: str,
    kind: str,
) -> None:
    """Measured again on a tenth of the held-out text, and in accord with the record."""
    value = validate(reference(name), bigram, cut_windows(tokenized.heldout[kind], 24))
    assert value.share < LEARNED_SHARE
    recorded = json.loads((folder_of(name) / RECORD_NAME).read_text())["validation"][kind]
    assert recorded["share"] < LEARNED_SHARE
    assert value.share == pytest.approx(recorded["share"], rel=0.15)


@pytest.mark.parametrize("name", IN_ENGINE)
def test_the_engine_computes_what_transformers_computes(
    reference: Callable[[str], Any], tokenized: TokenizedCorpus, name: str
) -> None:
    llm = LLM(name, dtype="float32", num_threads=1, enable_prefix_caching=False)
    for stream in tokenized.heldout.values():
        ids = stream[:600].tolist()
        with torch.inference_mode():
            expected = reference(name)(input_ids=torch.tensor([ids])).logits[0]
        found = llm.logits(ids)
        error = (found - expected).abs().amax(dim=-1) / expected.abs().amax(dim=-1)
        assert error.max().item() <= 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_the_record_is_that_of_the_recipe(name: str) -> None:
    """Weights of another recipe than the one in the code cannot be made again."""
    record = json.loads((folder_of(name) / RECORD_NAME).read_text())
    assert record["recipe"] == RECIPES[name].to_dict()
    assert record["num_steps"] == RECIPES[name].num_steps
    assert record["text_licence"] == "PSF-2.0"


def test_experts_share_the_work(
    reference: Callable[[str], Any], tokenized: TokenizedCorpus
) -> None:
    windows = np.concatenate([cut_windows(tokenized.heldout[kind], 8) for kind in KINDS])
    for shares in routing_shares(reference("tiny-moe"), windows):
        assert min(shares) > 0.02
        jain = 1 / (len(shares) * sum(share**2 for share in shares))
        assert jain > 0.8


def test_all_three_have_one_tokenizer() -> None:
    """A draft model with other tokens could not propose any."""
    stored = {(folder_of(name) / "tokenizer.json").read_text() for name in NAMES}
    assert len(stored) == 1


def test_the_tokenizer_is_the_one_that_the_corpus_gives(tokenizer: Any) -> None:
    record = json.loads((folder_of("tiny-dense") / RECORD_NAME).read_text())
    texts = {kind: record["corpus"][f"{kind}/train"] for kind in KINDS}
    if texts != {kind: corpus.content_hash(kind, "train") for kind in KINDS}:
        pytest.skip("this Python's text is another one than the models were trained on")
    stored = json.loads((folder_of("tiny-dense") / "tokenizer.json").read_text())
    assert stored["model"] == json.loads(tokenizer.to_str())["model"]


def test_they_are_registered_with_their_terms() -> None:
    entries = {entry.slug: entry for entry in list_models()}
    for name in NAMES:
        assert "PSF" in str(entries[name].licence)
        assert entries[name].stored_dtype == "bfloat16"
        assert resolve_model(name, show_progress=False).format == "safetensors"


def test_they_take_little_room_in_a_wheel() -> None:
    files = [p for name in NAMES for p in folder_of(name).iterdir()]
    assert sum(len(zlib.compress(p.read_bytes())) for p in files) < MAX_SHIPPED_BYTES


def test_it_writes_python() -> None:
    llm = LLM("tiny-dense", dtype="float32", num_threads=1)
    (output,) = llm.generate(["import os\nimport "], SamplingParams(temperature=0, max_tokens=8))
    assert output.outputs[0].text.partition("\n")[0].isidentifier()
