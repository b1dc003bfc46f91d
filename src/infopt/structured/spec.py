"""`StructuredSpec`: what the output must look like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from infopt.errors import InfoptError
from infopt.sampling_params import StructuredOutputsParams

Kind = Literal["json_schema", "regex", "grammar"]


class StructuredOutputError(InfoptError):
    """A schema, expression or grammar is malformed, impossible to satisfy, or not supported."""


@dataclass(frozen=True, slots=True)
class StructuredSpec:
    """A description of the output; equal ones share one compiled grammar.

    Attributes:
        kind: What ``source`` is.
        source: A JSON Schema as JSON text, a regular expression (of the whole output, in the syntax
            of Rust's regex crate), or a Lark grammar with the start rule ``start``.
    """

    kind: Kind
    source: str

    def __post_init__(self) -> None:
        """Check the text.

        Raises:
            StructuredOutputError: If it holds half of a surrogate pair, which no output can.
        """
        try:
            self.source.encode()
        except UnicodeEncodeError as error:
            raise StructuredOutputError(
                f"the {self.kind} holds {self.source[error.start]!r}, half of a surrogate pair.",
                field=self.kind,
                value=self.source[error.start],
                remedy="Decode the text as UTF-16 or UTF-8 first.",
            ) from error

    @classmethod
    def of(cls, params: StructuredOutputsParams) -> StructuredSpec:
        """Return the description that sampling parameters ask for.

        Raises:
            StructuredOutputError: If a schema is no JSON, or a choice has nothing to choose from.
        """
        if params.json is not None:
            return cls.json_schema(_parsed(params.json))
        if params.regex is not None:
            return cls.regex(params.regex)
        if params.grammar is not None:
            return cls.grammar(params.grammar)
        return cls.json_object() if params.choice is None else cls.choice(params.choice)

    @classmethod
    def json_object(cls) -> StructuredSpec:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def json_schema(cls, schema: Any) -> StructuredSpec:
        """JSON that a schema describes; properties come in the schema's order."""
        return cls("json_schema", json.dumps(schema, ensure_ascii=False))

    @classmethod
    def regex(cls, pattern: str) -> StructuredSpec:
        """Text that a regular expression matches from beginning to end."""
        return cls("regex", pattern)

    @classmethod
    def grammar(cls, lark: str) -> StructuredSpec:
        """Text that a Lark grammar derives."""
        return cls("grammar", lark)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> StructuredSpec:
        """One of some texts.

        Raises:
            StructuredOutputError: If there is none.
        """
        if not choices:
            raise StructuredOutputError("choice is empty.", field="choice", value=[])
        return cls("grammar", "start: " + " | ".join(map(lark_string, choices)))


def _parsed(schema: Any) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError as error:
        raise StructuredOutputError(
            f"the schema is not JSON: {error}", field="json", value=schema
        ) from error


def lark_string(text: str) -> str:
    """Return a text as a Lark literal (which has JSON's escapes)."""
    return json.dumps(text, ensure_ascii=False)
