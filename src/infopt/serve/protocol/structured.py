"""Fields that say what the output must look like."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from infopt.serve.protocol.strict import StrictModel
from infopt.structured import StructuredOutputError, StructuredSpec

_JsonSchema = dict[str, Any] | bool


class NamedSchema(StrictModel):
    """A JSON Schema with a name."""

    name: str
    description: str | None = Field(None, description="Accepted, without effect.")
    schema_: _JsonSchema | None = Field(None, alias="schema")
    strict: bool | None = Field(None, description="A schema is always enforced.")


class ResponseFormat(StrictModel):
    """Form of the answer, as OpenAI has it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    def spec(self) -> StructuredSpec | None:
        """Return what to enforce.

        Raises:
            StructuredOutputError: If type and schema do not go together.
        """
        has_schema = self.json_schema is not None and self.json_schema.schema_ is not None
        if has_schema != (self.type == "json_schema"):
            raise StructuredOutputError(
                f"response_format of type {self.type!r} "
                f"{'has a' if has_schema else 'needs a'} json_schema.schema.",
                field="response_format.json_schema",
            )
        if self.type == "text":
            return None
        if self.type == "json_object":
            return StructuredSpec.json_object()
        assert self.json_schema is not None
        return StructuredSpec.json_schema(self.json_schema.schema_)


class StructuredOutputs(StrictModel):
    """Form of the answer, with vLLM's names; exactly one."""

    json_: _JsonSchema | None = Field(None, alias="json", description="A JSON Schema.")
    json_object: bool | None = Field(None, description="Any JSON object.")
    regex: str | None = Field(None, description="Matches the whole answer.")
    choice: list[str] | None = None
    grammar: str | None = Field(None, description="Lark, with the rule start.")

    def spec(self) -> StructuredSpec:
        """Return what to enforce.

        Raises:
            StructuredOutputError: If nothing is given, or more than one thing.
        """
        makers: dict[str, Any] = {
            "json_": StructuredSpec.json_schema,
            "json_object": lambda _: StructuredSpec.json_object(),
            "regex": StructuredSpec.regex,
            "choice": StructuredSpec.choice,
            "grammar": StructuredSpec.grammar,
        }
        given = [name for name in makers if getattr(self, name) is not None]
        if self.json_object is False:
            given.remove("json_object")
        if len(given) != 1:
            raise StructuredOutputError(
                f"structured_outputs needs exactly one of json, json_object, regex, choice and "
                f"grammar, got {len(given)}.",
                field="structured_outputs",
            )
        return makers[given[0]](getattr(self, given[0]))
