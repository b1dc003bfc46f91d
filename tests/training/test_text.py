"""Tokenizer, splits and batches: nothing held out is trained on, and no byte is lost."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infopt import corpus
from infopt.models.tokenizer import Tokenizer
from infopt.training.recipes import VOCAB_SIZE
from infopt.training.text import (
    END_OF_TEXT,
    KINDS,
    TokenizedCorpus,
    sample_batch,
    train_tokenizer,
    transformers_tokenizer,
)

BLANK_LINES = re.compile(r"\n[ \t]*\n")


@pytest.fixture(scope="module")
def wrapped(tokenizer: Any) -> Tokenizer:
    """The tokenizer as the engine uses it."""
    return Tokenizer(transformers_tokenizer(tokenizer))


def long_paragraphs(text: str) -> set[str]:
    paragraphs = (" ".join(p.split()) for p in BLANK_LINES.split(text))
    return {p for p in paragraphs if len(p) >= 60}


def test_no_heldout_paragraph_is_among_the_training_tokens(
    tokenizer: Any, tokenized: TokenizedCorpus
) -> None:
    """Perplexity on text that was trained on says nothing."""
    trained = long_paragraphs(tokenizer.decode(tokenized.train.tolist()))
    assert len(trained) > 10_000
    for kind in KINDS:
        heldout = long_paragraphs(corpus.text(kind, "heldout"))
        assert len(heldout) > 100
        assert not heldout & trained


def test_every_document_is_behind_an_end_of_text(tokenized: TokenizedCorpus) -> None:
    num_documents = sum(len(corpus.documents(kind, "train")) for kind in KINDS)
    assert tokenized.train[0] == 0
    assert int((tokenized.train == 0).sum()) == num_documents
    for kind in KINDS:
        ends = int((tokenized.heldout[kind] == 0).sum())
        assert ends == len(corpus.documents(kind, "heldout"))


def test_the_stream_is_the_text(tokenizer: Any, tokenized: TokenizedCorpus) -> None:
    texts = [d.text for d in corpus.documents("docs", "heldout")]
    ids = tokenized.heldout["docs"].tolist()
    assert tokenizer.decode(ids, skip_special_tokens=True) == "".join(texts)
    assert max(ids) < VOCAB_SIZE


def test_training_the_tokenizer_twice_gives_the_same(tokenizer: Any) -> None:
    """Draft and target must agree on every token."""
    assert train_tokenizer().to_str() == tokenizer.to_str()
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert tokenizer.token_to_id(END_OF_TEXT) == 0


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(wrapped: Tokenizer, text: str) -> None:
    ids = wrapped.encode(text, add_special_tokens=False)
    if END_OF_TEXT not in text:
        assert b"".join(wrapped.token_bytes(i) for i in ids) == text.encode()
    assert wrapped.hf.decode(ids) == text


@given(st.binary())
def test_any_bytes_can_be_written(wrapped: Tokenizer, data: bytes) -> None:
    """Also such as are no UTF-8: each byte has a token of its own."""
    single = {wrapped.token_bytes(i): i for i in range(1, 257)}
    assert len(single) == 256
    ids = [single[bytes([byte])] for byte in data]
    assert b"".join(wrapped.token_bytes(i) for i in ids) == data


def test_the_chat_template_opens_an_answer(wrapped: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    prompt = wrapped.hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == "user: Hello\n\nassistant:"


def test_batches_follow_from_seed_and_step() -> None:
    stream = np.arange(1000)
    batch = sample_batch(stream, num_rows=4, context=8, seed=3, step=7)
    assert batch.shape == (4, 9)
    assert batch.dtype == torch.int64
    assert torch.equal(batch[:, 1:], batch[:, :-1] + 1)
    assert torch.equal(batch, sample_batch(stream, num_rows=4, context=8, seed=3, step=7))
    assert not torch.equal(batch, sample_batch(stream, num_rows=4, context=8, seed=3, step=8))
    assert not torch.equal(batch, sample_batch(stream, num_rows=4, context=8, seed=4, step=7))


def test_every_token_can_be_in_a_batch() -> None:
    """Neither the first nor the last token of the stream is out of reach."""
    seen = sample_batch(np.arange(12), num_rows=200, context=4, seed=0, step=0)
    assert seen.unique().tolist() == list(range(12))
