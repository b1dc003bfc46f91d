"""`StrictModel`: bodies in which every field is known and has its type."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
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
