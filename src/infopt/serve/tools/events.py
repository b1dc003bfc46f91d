"""What a model's text turns out to be, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model thought to itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a function begins; pieces of its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments, exactly as the model wrote it."""

    index: int
    text: str


Event = Content | Reasoning | CallStart | CallArguments
