"""How many tokens an answer had, and how many came with each piece of it.

The total is the server's (``usage``). Where it gives none, the tokenizer counts the text; without a
tokenizer there is one token per piece, and the result says so. Pieces share the total

* as the server's running count says, where it sends one with each event,
* one each, where there are as many pieces as tokens,
* else in proportion to their texts, whole tokens, at least one each while they last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from infopt.bench.http.answer import Piece, StreamedAnswer
from infopt.bench.latency import Chunk

CountSource = Literal["usage", "tokenizer", "pieces"]
TokenCounter = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class CountedAnswer:
    """An answer in tokens.

    Attributes:
        chunks: When how many tokens became visible.
        num_tokens: All of them.
        source: Who counted.
        is_split_exact: Whether the tokens of each chunk are known, not estimated.
    """

    chunks: tuple[Chunk, ...]
    num_tokens: int
    source: CountSource
    is_split_exact: bool


def count_answer(answer: StreamedAnswer, counter: TokenCounter | None) -> CountedAnswer:
    """Count the tokens of an answer, whole or not.

    Args:
        answer: What came.
        counter: Tokens of a text, by the model's tokenizer.
    """
    exact = _running_counts(answer.pieces)
    if exact is not None:
        return CountedAnswer(_chunks(answer.pieces, exact), sum(exact), "usage", True)
    pieces = [p for p in answer.pieces if p.text]
    num_tokens, source = _total(answer, pieces, counter)
    if num_tokens and not pieces and answer.last_choice_s is not None:
        # All tokens were special ones without a text: the client knew of them at the end.
        pieces = [Piece(answer.last_choice_s, "")]
    is_split_exact = num_tokens == len(pieces)
    if is_split_exact:
        counts = [1] * num_tokens
    else:
        weights = [max(counter(p.text) if counter else len(p.text), 1) for p in pieces]
        counts = split_total(num_tokens, weights)
    return CountedAnswer(_chunks(pieces, counts), num_tokens, source, is_split_exact)


def split_total(total: int, weights: Sequence[int]) -> list[int]:
    """Split a total into whole shares in proportion to positive weights.

    While there is one for each, each share is at least 1; the first one is never 0, since something
    did come then.
    """
    count, whole = len(weights), sum(weights)
    sums = list(accumulate(weights))
    if total < count:
        # Rounded up at the running sum, so that the first share is not 0.
        ends = [-(-total * seen // whole) for seen in sums]
    else:
        ends = [(2 * total * seen + whole) // (2 * whole) for seen in sums]
        # Room for one each: behind every end as many as still follow, before it as many as came.
        ends = [min(end, total - (count - i)) for i, end in enumerate(ends, start=1)]
        ends = list(accumulate(ends, lambda before, end: max(end, before + 1), initial=0))[1:]
    return [b - a for a, b in pairwise([0, *ends])]


def _total(
    answer: StreamedAnswer, pieces: Sequence[Piece], counter: TokenCounter | None
) -> tuple[int, CountSource]:
    reported = (answer.usage or {}).get("completion_tokens")
    # A count of 0 beside text is a server that does not count.
    if isinstance(reported, int) and (reported > 0 or not pieces):
        return reported, "usage"
    if counter is None:
        return len(pieces), "pieces"
    return (max(counter(answer.text), 1) if pieces else 0), "tokenizer"


def _running_counts(pieces: Sequence[Piece]) -> list[int] | None:
    """Return the tokens of each piece, where the server sent a running count with every one."""
    if len(pieces) < 2 or any(p.num_tokens_so_far is None for p in pieces):
        return None
    totals = [0, *(p.num_tokens_so_far or 0 for p in pieces)]
    return [max(b - a, 0) for a, b in pairwise(totals)]


def _chunks(pieces: Sequence[Piece], counts: Sequence[int]) -> tuple[Chunk, ...]:
    return tuple(
        Chunk(p.time_s, count, p.is_content) for p, count in zip(pieces, counts, strict=True)
    )
