"""What of a model fits into a budget: bytes by length, sequences by length and page form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infopt.cache.memory_model import KVShape, QuantizedForm, rows_kept
from infopt.cache.page_rules import PageCount, PageRules, num_sequences

LENGTHS = (512, 2048, 8192, 32768, 131072)
"""Lengths in tokens that are worth a line, as far as a model reaches."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How many sequences of one length a budget holds.

    Attributes:
        num_tokens: Length of each, prompt and answer.
        num_seqs: Sequences at once.
        bytes_per_token: Pool bytes per token of a sequence, waste and whole rows included.
        waste: Share of a sequence's slots that hold nothing.
    """

    num_tokens: int
    num_seqs: int
    bytes_per_token: float
    waste: float


@dataclass(frozen=True, slots=True)
class Compression:
    """What is done to a sequence's rows.

    Attributes:
        name: How it is called.
        dtype: How old rows are kept (``kv_cache_dtype``).
        eviction: Options of eviction; None keeps all rows.
    """

    name: str
    dtype: str = "auto"
    eviction: Mapping[str, Any] | None = None


COMPRESSIONS = (
    Compression("auto"),
    Compression("int8", "int8"),
    Compression("int4", "int4"),
    Compression("int8, half of the rows", "int8", {"budget": 0.5}),
)


def page_rules(
    shape: KVShape,
    *,
    bytes_per_value: int = 2,
    block_size: int = 16,
    quantized: QuantizedForm | None = None,
) -> PageRules:
    """Return the pages of a model whose layers all keep everything.

    Args:
        shape: The model.
        bytes_per_value: Of the compute type.
        block_size: Rows per page.
        quantized: Form of old rows; None keeps all in the compute type.
    """
    row = shape.num_layers * shape.layer_values
    page_bytes = row * block_size * bytes_per_value
    if quantized is None:
        return PageRules(block_size, 1, page_bytes)
    old = row * quantized.group_size * shape.quantized_bytes_per_value(quantized)
    return PageRules(block_size, 1, page_bytes, quantized, round(old))


def fits(
    shape: KVShape, rules: PageRules, budget_bytes: int, lengths: Sequence[int], how: Compression
) -> Iterator[Fit]:
    """Yield how many sequences of each length a budget holds.

    The newest rows of every sequence stay whole, so they and the quantized rest share the budget.

    Args:
        shape: The model; window layers hold their window only.
        rules: Its pages.
        budget_bytes: The budget.
        lengths: Tokens of a sequence.
        how: What is done to its rows.
    """
    for num_tokens in lengths:
        rows = rows_kept(num_tokens, how.eviction)
        share = shape.bytes_at(rows) / (shape.bytes_per_token() * rows)
        held = rules.num_bytes(rules.pages(rows)) * share
        count = num_sequences(PageCount(budget_bytes), PageCount(max(round(held), 1)))
        yield Fit(num_tokens, count, held / num_tokens, rules.waste(rows))


def lengths_up_to(limit: int) -> list[int]:
    """Return the lengths worth a line for a model of that limit, the limit among them."""
    return [n for n in LENGTHS if n < limit] + [limit]
