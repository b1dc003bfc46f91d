"""Reads request bodies strictly: UTF-8, one value per key, numbers that are numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from infopt.serve.errors import ApiError

_LARGE_BYTES = 2**18
"""Bodies above this are parsed on another thread, so that the event loop goes on."""


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
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise _bad(f"the body is not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise _bad("the body is nested too deeply") from error
    except ValueError as error:
        raise _bad(f"the body is not JSON: {error}") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise ValueError(f"the key {key!r} is there twice")
        data[key] = value
    return data


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _bad(message: str) -> ApiError:
    return ApiError(400, f"{message}.", code="invalid_json")
