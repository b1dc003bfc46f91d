"""The corpus as tokens: a byte-level BPE tokenizer of our own, token streams, and batches.

Training reads the train split alone; the held-out split is what evaluations score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch

from infopt import corpus
from infopt.training.recipes import MAX_POSITIONS, VOCAB_SIZE

if TYPE_CHECKING:
    from tokenizers import Tokenizer

KINDS: tuple[corpus.Kind, ...] = get_args(corpus.Kind)

END_OF_TEXT = "<|endoftext|>"
"""Begins every document, and so ends the one before; its id is 0."""

# Not trained on conversations: this only makes the chat interfaces usable.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TokenizedCorpus:
    """The corpus in tokens.

    Attributes:
        train: All train documents, int64 ids, shape (num_tokens,).
        heldout: The held-out documents of each kind, likewise.
    """

    train: np.ndarray
    heldout: dict[str, np.ndarray]


def train_tokenizer(vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train the tokenizer on the train split: 1 special token, 256 bytes, then merges.

    Args:
        vocab_size: Entries; at least 257.

    Returns:
        The same tokenizer on every call.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (document.text for kind in KINDS for document in corpus.documents(kind, "train"))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def transformers_tokenizer(tokenizer: Tokenizer) -> Any:
    """Wrap a tokenizer for transformers, with end of text and chat template."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def tokenize_corpus(tokenizer: Tokenizer) -> TokenizedCorpus:
    """Encode both splits, each document behind an end of text."""
    train = np.concatenate([_stream(tokenizer, kind, "train") for kind in KINDS])
    return TokenizedCorpus(train, {kind: _stream(tokenizer, kind, "heldout") for kind in KINDS})


def sample_batch(
    tokens: np.ndarray, *, num_rows: int, context: int, seed: int, step: int
) -> torch.Tensor:
    """Draw windows that begin anywhere in the stream.

    A step's windows depend on seed and step alone, so a resumed training draws what it would have
    drawn.

    Args:
        tokens: The stream, shape (num_tokens,).
        num_rows: Windows.
        context: Tokens that are predicted per window.
        seed: Seed of the training.
        step: Number of the step.

    Returns:
        int64 ids, shape (num_rows, context + 1).
    """
    rng = np.random.default_rng([seed, step])
    starts = rng.integers(0, len(tokens) - context, size=num_rows)
    return torch.from_numpy(tokens[starts[:, None] + np.arange(context + 1)])


def _stream(tokenizer: Tokenizer, kind: corpus.Kind, split: corpus.Split) -> np.ndarray:
    end = tokenizer.token_to_id(END_OF_TEXT)
    texts = [document.text for document in corpus.documents(kind, split)]
    pieces = [[end, *encoding.ids] for encoding in tokenizer.encode_batch(texts)]
    return np.concatenate([np.array(piece, dtype=np.int64) for piece in pieces])
