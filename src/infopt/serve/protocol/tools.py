"""Fields of function calling."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from infopt.errors import PromptError
from infopt.serve.protocol.strict import StrictModel


class FunctionSpec(StrictModel):
    """A function that may be called."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON Schema.")
    strict: bool | None = Field(None, description="Accepted; forced calls obey the schema anyway.")


class Tool(StrictModel):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionSpec


class FunctionName(StrictModel):
    """Which function."""

    name: str


class NamedChoice(StrictModel):
    """One function that must be called."""

    type: Literal["function"]
    function: FunctionName


class CalledFunction(StrictModel):
    """A function that was called, and how."""

    name: str
    arguments: str = Field(description="JSON text of an object.")


class ToolCall(StrictModel):
    """A call in the history."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, description="Accepted, without effect.")

    def for_template(self, place: str) -> dict[str, Any]:
        """Return what chat templates expect: arguments as data.

        Args:
            place: Where it is in the request, for the message.

        Raises:
            PromptError: If the arguments are no JSON object.
        """
        field = f"{place}.function.arguments"
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise PromptError(
                f"{field} is not JSON: {error}",
                field=field,
                value=self.function.arguments,
                remedy="Repair the arguments, or leave this call out of the history.",
            ) from error
        if not isinstance(arguments, dict):
            raise PromptError(f"{field} must be a JSON object.", field=field, value=arguments)
        function = {"name": self.function.name, "arguments": arguments}
        return {"type": "function", "function": function} | ({"id": self.id} if self.id else {})
