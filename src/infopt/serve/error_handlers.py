"""Gives every failure of a route the one error shape."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from infopt.errors import InfoptError
from infopt.serve.errors import ApiError, of_infopt


def install_error_handlers(app: FastAPI, retry_after_s: int) -> None:
    """Register the handlers.

    Args:
        app: The application.
        retry_after_s: What a client is told to wait when the queue is full.
    """

    @app.exception_handler(InfoptError)
    async def _of_library(request: Request, error: InfoptError) -> Response:
        return of_infopt(error, retry_after_s).response()

    @app.exception_handler(RequestValidationError)
    async def _of_body(request: Request, error: RequestValidationError) -> Response:
        return of_validation(error.errors()).response()

    @app.exception_handler(HTTPException)
    async def _of_http(request: Request, error: HTTPException) -> Response:
        if isinstance(error, ApiError):
            return error.response()
        return _of_route(request, error).response()

    @app.exception_handler(Exception)
    async def _of_bug(request: Request, error: Exception) -> Response:
        # Starlette raises it again after the answer, so the log gets the traceback.
        return ApiError(500, "internal error.", code="internal_error").response()


def of_validation(errors: Any) -> ApiError:
    """Return the error for a body that does not have the right shape.

    Args:
        errors: pydantic's list; of a field that may have several types there is one per type.
    """
    first = errors[0]
    path = [part for part in first["loc"][1:] if _is_place(part)]
    context = first.get("ctx") or {}
    if "field" in context:
        path.append(context["field"])
    param = ".".join(str(part) for part in path) or None
    texts = dict.fromkeys(e["msg"] for e in errors if e["loc"][:2] == first["loc"][:2])
    message = f"{param or 'body'}: {' or '.join(texts)}"
    return ApiError(400, message, param=param, code=_code(first["type"]))


def _is_place(part: object) -> bool:
    """Whether a part of a location is a field or an index, not one of pydantic's type names."""
    return isinstance(part, int) or (
        isinstance(part, str) and part not in ("str", "int", "float") and "[" not in part
    )


def _code(kind: str) -> str:
    named = {"unknown_field": "unknown_field", "missing": "missing_field"}
    return named.get(kind, "invalid_value")


def _of_route(request: Request, error: HTTPException) -> ApiError:
    """Return the error for a path or method that does not exist."""
    asked = f"{request.method} {request.url.path}"
    messages = {404: f"there is no {asked}; /docs lists the routes.", 405: f"no {asked}."}
    codes = {404: "not_found", 405: "method_not_allowed"}
    return ApiError(
        error.status_code,
        messages.get(error.status_code, str(error.detail)),
        code=codes.get(error.status_code),
        headers=dict(error.headers or {}),
    )
