"""Where prompts get their tokens: real text through a tokenizer, or seeded random ids.

The text is that of `infopt.corpus`: documentation and sources that every Python holds.
"""

from __future__ import annotations

import zlib
from typing import Any, Protocol

import numpy as np

from infopt.corpus import Kind, Split
from infopt.corpus import text as corpus_text
from infopt.errors import WorkloadError

_MAX_TEXT_CHARS = 1_000_000
"""Longer corpora are cut: tokenizing takes a second per 2 MB, and prompts need no more."""


class Encoder(Protocol):
    """The part of a tokenizer that workloads use."""

    @property
    def chat_template(self) -> str | None:
        """The chat template, if there is one."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        ...

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        ...

    def apply_chat_template(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the token ids of a conversation."""
        ...


class TokenSource(Protocol):
    """Makes token ids for prompts."""

    def take(
        self, num_tokens: int, rng: np.random.Generator, *, label: str = "", is_start: bool = True
    ) -> list[int]:
        """Return ``num_tokens`` tokens from a random place.

        Args:
            num_tokens: How many, exactly.
            rng: Decides where.
            label: Text put in front, so that two stretches never share a prefix by chance.
            is_start: Whether this begins a prompt (and a sequence-start token belongs there).
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a short text, such as an instruction."""
        ...

    def user_turn(self, instruction: str, body: list[int]) -> list[int]:
        """Return a prompt that gives an instruction about a text."""
        ...


class TextTokens:
    """Tokens of real text.

    Args:
        tokenizer: Any tokenizer with `Encoder`'s methods.
        kind: Which corpus.
        split: Which part of it; quality is measured on the other one.
    """

    def __init__(self, tokenizer: Encoder, *, kind: Kind = "docs", split: Split = "train") -> None:
        """Tokenize the corpus once; a stretch is then a slice."""
        self._tokenizer = tokenizer
        self._ids = tokenizer.encode(
            corpus_text(kind, split)[:_MAX_TEXT_CHARS], add_special_tokens=False
        )
        bare = tokenizer.encode("a", add_special_tokens=False)
        with_special = tokenizer.encode("a", add_special_tokens=True)
        # Models with a beginning-of-sequence token answer nonsense without it.
        self._prefix = with_special[: len(with_special) - len(bare)] if bare else []

    def take(
        self, num_tokens: int, rng: np.random.Generator, *, label: str = "", is_start: bool = True
    ) -> list[int]:
        """Return sequence-start token, label and running text, ``num_tokens`` in all."""
        head = (self._prefix if is_start else []) + (self.encode(label) if label else [])
        head = head[:num_tokens]
        return head + self._stretch(num_tokens - len(head), rng)

    def _stretch(self, num_tokens: int, rng: np.random.Generator) -> list[int]:
        """Return running text from a random place, wrapping round at the end of the corpus."""
        start = int(rng.integers(0, len(self._ids)))
        out = self._ids[start : start + num_tokens]
        while len(out) < num_tokens:
            out = out + self._ids[: num_tokens - len(out)]
        return out

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text`` without special tokens."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def user_turn(self, instruction: str, body: list[int]) -> list[int]:
        """Put instruction and text into the model's chat template, or one after the other."""
        text = self._tokenizer.decode(body)
        content = f"{instruction}\n\n{text}"
        if self._tokenizer.chat_template:
            return self._tokenizer.apply_chat_template([{"role": "user", "content": content}])
        return self._prefix + self.encode(f"{content}\n\n")


class RandomTokens:
    """Seeded random ids below a vocabulary size, for models without a tokenizer.

    Args:
        vocab_size: Ids are in ``[first_id, vocab_size)``.
        first_id: First id to use (above a model's special tokens, say).
    """

    def __init__(self, vocab_size: int, *, first_id: int = 0) -> None:
        """Check the range."""
        if not 0 <= first_id < vocab_size:
            raise WorkloadError(
                f"Random token ids need 0 <= first_id < vocab_size, got first_id={first_id} and "
                f"vocab_size={vocab_size}.",
                field="vocab_size",
                value=vocab_size,
            )
        self._low, self._high = first_id, vocab_size

    def take(
        self, num_tokens: int, rng: np.random.Generator, *, label: str = "", is_start: bool = True
    ) -> list[int]:
        """Return independent uniform ids (random prefixes need no label to differ)."""
        del label, is_start
        return rng.integers(self._low, self._high, size=num_tokens).tolist()

    def encode(self, text: str) -> list[int]:
        """Return ids that depend on the text alone, about one per four characters."""
        rng = np.random.default_rng(zlib.crc32(text.encode()))
        return self.take(max(len(text) // 4, 1), rng)

    def user_turn(self, instruction: str, body: list[int]) -> list[int]:
        """Return the instruction's ids followed by the text's."""
        return self.encode(instruction) + body


def make_token_source(
    tokenizer: Encoder | None,
    *,
    vocab_size: int | None = None,
    kind: Kind = "docs",
    split: Split = "train",
) -> TokenSource:
    """Return real text for a tokenizer, or random ids below ``vocab_size`` without one."""
    if tokenizer is not None:
        return TextTokens(tokenizer, kind=kind, split=split)
    if vocab_size is None:
        raise WorkloadError(
            "A workload without a tokenizer needs vocab_size for its random ids.",
            field="vocab_size",
            remedy="Pass a tokenizer, or vocab_size=model_config.num_real_tokens.",
        )
    return RandomTokens(vocab_size)
