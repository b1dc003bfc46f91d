"""Numbers that describe a prompt: length, kinds of characters, hashed n-grams."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NUM_BUCKETS = 256
"""Buckets of hashed n-grams."""

_NAMES = ("log_characters", "log_words", "log_lines")
_SHARES = ("letter", "digit", "space", "upper", "punctuation", "non_ascii")
FEATURE_NAMES = (*_NAMES, *(f"share_{name}" for name in _SHARES))
"""Of the columns before the buckets."""

NUM_FEATURES = len(FEATURE_NAMES) + NUM_BUCKETS

_ENDS = 2048
"""Characters read from each end of a prompt: a bound on the time."""
_GRAM = 3


def prompt_features(prompts: Sequence[str]) -> NDArray[np.float64]:
    """Return features, shape (num_prompts, NUM_FEATURES).

    Logarithms of counts, shares of characters in [0, 1], and a vector of hashed words and character
    trigrams whose entries have length 1 together (signed hashing: collisions cancel on average
    instead of adding up). The hash is CRC-32, the same in every process.
    """
    features = np.zeros((len(prompts), NUM_FEATURES))
    for row, prompt in zip(features, prompts, strict=True):
        row[: len(_NAMES)] = _counts(prompt)
        text = prompt if len(prompt) <= 2 * _ENDS else f"{prompt[:_ENDS]}\n{prompt[-_ENDS:]}"
        row[len(_NAMES) : len(FEATURE_NAMES)] = _shares(text)
        _add_grams(row[len(FEATURE_NAMES) :], text)
    return features


def _counts(prompt: str) -> tuple[float, ...]:
    counts = len(prompt), len(prompt.split()), prompt.count("\n")
    return tuple(math.log1p(count) for count in counts)


def _shares(text: str) -> NDArray[np.float64]:
    kinds = (str.isalpha, str.isdigit, str.isspace, str.isupper, _is_punctuation, _is_foreign)
    return np.array([sum(map(kind, text)) for kind in kinds]) / max(len(text), 1)


def _is_punctuation(character: str) -> bool:
    return character.isascii() and character.isprintable() and not character.isalnum()


def _is_foreign(character: str) -> bool:
    return not character.isascii()


def _add_grams(buckets: NDArray[np.float64], text: str) -> None:
    lower = text.lower()
    grams = [lower[i : i + _GRAM] for i in range(len(lower) - _GRAM + 1)]
    words = [f" {word} " for word in lower.split()]
    for gram in (*grams, *words):
        code = zlib.crc32(gram.encode("utf-8", "replace"))
        buckets[(code >> 1) % NUM_BUCKETS] += 1 if code & 1 else -1
    norm = np.linalg.norm(buckets)
    if norm > 0:
        buckets /= norm
