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


def chain_key(parent: PageKey, tokens: Sequence[int]) -> PageKey:
    """Return the key of a full page whose predecessors have the key ``parent``."""
    packed = struct.pack(f"<{len(tokens)}q", *tokens)
    return hashlib.blake2b(parent + packed, digest_size=16).digest()
