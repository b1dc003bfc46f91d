"""Keys of cached pages: chained hashes of tokens under everything that changes KV content."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence

PageKey = bytes
"""Digest of a page's tokens and of all that precede them."""


def root_key(fields: Mapping[str, object]) -> PageKey:
    """Return the key that a chain starts from.

    Names and values are length-prefixed, so two different sets of fields never spell alike
    (a salt "x" and an adapter "x" differ, and so do "ab" + "c" and "a" + "bc").

    Args:
        fields: Everything that changes KV content: model identity, types, page size, salt, ...
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(fields):
        for text in (name, repr(fields[name])):
            raw = text.encode()
            digest.update(struct.pack("<Q", len(raw)))
            digest.update(raw)
    return digest.digest()


class KeyChain:
    """Keys of a prompt's full pages, made when they are asked for.

    Args:
        root: Where the chain starts.
        tokens: The prompt.
        page_size: Tokens per page.
    """

    def __init__(self, root: PageKey, tokens: Sequence[int], page_size: int) -> None:
        """Make no key yet."""
        self._root, self._tokens, self._size = root, tokens, page_size
        self._keys: list[PageKey] = []
        self.limit = max(len(tokens) - 1, 0) // page_size
        """Pages that leave at least one token behind them."""

    def __getitem__(self, position: int) -> PageKey:
        """Return the key of the page at a position below ``limit``."""
        while len(self._keys) <= position:
            start = len(self._keys) * self._size
            parent = self._keys[-1] if self._keys else self._root
            self._keys.append(chain_key(parent, self._tokens[start : start + self._size]))
        return self._keys[position]

    def first(self, count: int) -> list[PageKey]:
        """Return the keys of the first pages."""
        return [self[position] for position in range(count)]


def chain_key(parent: PageKey, tokens: Sequence[int]) -> PageKey:
    """Return the key of a full page whose predecessors have the key ``parent``."""
    packed = struct.pack(f"<{len(tokens)}q", *tokens)
    return hashlib.blake2b(parent + packed, digest_size=16).digest()
