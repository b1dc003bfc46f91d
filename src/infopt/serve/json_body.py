"""Reads request bodies strictly: UTF-8, one value per key, numbers and texts that are such."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from infopt.serve.errors import ApiError

_LARGE_BYTES = 2**18
"""Bodies above this are parsed on another thread, so that the event loop goes on."""


_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: text that no bytes stand for, whose other half is missing."""

_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""How one comes through UTF-8; whole pairs are written so as well."""


class StrictRequest(Request):
    """A request whose JSON is read by `parse_json`."""

    async def json(self) -> Any:
        """Return the body as plain data.

        Raises:
            ApiError: 400 that says what is wrong with it.
        """
        body = await self.body()
        if len(body) > _LARGE_BYTES:
            return await asyncio.to_thread(parse_json, body)
        return parse_json(body)


class StrictRoute(APIRoute):
    """A route that hands its handler a `StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the usual handler."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


def parse_json(body: bytes) -> Any:
    """Parse a body.

    Raises:
        ApiError: 400 that says what is wrong with it.
    """
    try:
        text = body.decode("utf-8")
        data = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
        half = _path_to_half(data) if _ESCAPED_HALF.search(text) else None
    except UnicodeDecodeError as error:
        raise _bad(f"the body is not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise _bad("the body is nested too deeply") from error
    except ValueError as error:
        raise _bad(f"the body is not JSON: {error}") from error
    if half is not None:
        raise _bad(f"{half or 'the body'} holds half of a surrogate pair", half or None)
    return data


def _path_to_half(data: Any) -> str | None:
    """Return where a string or key holds half of a surrogate pair; "" is the document itself."""
    if isinstance(data, str):
        return "" if _HALF.search(data) else None
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(data, dict):
        items = data.items()
    elif isinstance(data, list):
        items = enumerate(data)
    for key, value in items:
        if isinstance(key, str) and _HALF.search(key):
            return key.encode("utf-8", "backslashreplace").decode("utf-8")
        if (rest := _path_to_half(value)) is not None:
            return f"{key}.{rest}" if rest else str(key)
    return None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise ValueError(f"the key {key!r} is there twice")
        data[key] = value
    return data


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _bad(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, f"{message}.", param=param, code="invalid_json")
