"""Answers that are read to their end before anybody sees them, and how sure they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from infopt.outputs import PositionLogprobs
from infopt.select.routing import Confidence, confidence_of
from infopt.serve.deltas import Delta
from infopt.serve.stream import OutputStream


async def all_of(stream: OutputStream) -> list[Delta]:
    """Return all deltas of a stream."""
    try:
        return [delta async for step in stream for delta in step]
    finally:
        stream.close()


@dataclass(frozen=True, slots=True)
class Replay:
    """Deltas that are all there already, as a stream.

    Attributes:
        deltas: In order.
        num_logprobs: Candidates per token that the client has asked for; None is none.
    """

    deltas: list[Delta]
    num_logprobs: int | None

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        """Yield everything at once."""
        for delta in self.deltas:
            delta.logprobs = _kept(delta, self.num_logprobs)
        yield self.deltas

    def close(self) -> None:
        """Nothing is left to let go of."""


def _kept(delta: Delta, num_logprobs: int | None) -> list[PositionLogprobs] | None:
    """Return the candidates that the client has asked for."""
    if num_logprobs is None or delta.logprobs is None:
        return None
    return [
        {id_: c for id_, c in entry.items() if id_ == token or c.rank <= num_logprobs}
        for entry, token in zip(delta.logprobs, delta.token_ids, strict=True)
    ]


def confidences_of(deltas: Sequence[Delta]) -> list[Confidence | None]:
    """Return the confidence of every answer; None for one without tokens."""
    answers: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for delta in deltas:
        pairs = answers.setdefault((delta.prompt_index, delta.index), [])
        pairs += _pairs(delta)
    return [
        confidence_of(*zip(*pairs, strict=True)) if pairs else None for pairs in answers.values()
    ]


def _pairs(delta: Delta) -> Iterator[tuple[float, float]]:
    """Yield the log-probability of each token and of the best other one."""
    for entry, token in zip(delta.logprobs or (), delta.token_ids, strict=True):
        others = [candidate.logprob for id_, candidate in entry.items() if id_ != token]
        yield entry[token].logprob, max(others)


def scored_tokens(delta: Delta, prompt: list[int]) -> Iterator[tuple[PositionLogprobs, int]]:
    """Yield the entry and the id of each prompt token that has a log-probability."""
    for entry, token in zip(delta.prompt_logprobs or (), prompt, strict=False):
        if entry is not None:
            yield entry, token
