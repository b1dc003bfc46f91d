"""`StrictModel`: bodies in which every field is known and has its type."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from infopt.errors import nearest


class StrictModel(BaseModel):
    """Refuses unknown fields and wrong types; null is the same as leaving a field out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for name in data if isinstance(data, dict) else ():
            if name not in known:
                hint = nearest(name, known) or f" Known fields: {', '.join(known)}."
                raise PydanticCustomError(
                    "unknown_field", "{text}", {"text": f"unknown.{hint}", "field": str(name)}
                )
        return data


def optional(description: str | None = None, **limits: Any) -> Any:
    """Return a field that may be left out.

    Args:
        description: What it means.
        limits: Keywords of JSON Schema (``minimum``, ``maxItems``, ...) that describe what is
            accepted. They are checked where the values are used, with a message that says more.
    """
    return Field(None, description=description, json_schema_extra=limits or None)
