"""Errors as clients see them, all alike: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from infopt.errors import CapacityError, InfoptError, PromptTooLongError, QueueFullError
from infopt.serve.responses import json_response

Headers = dict[str, str]


class ApiError(HTTPException):
    """An answer that is an error.

    Args:
        status: HTTP status.
        message: What went wrong, and what to do.
        param: The request field at fault.
        code: Short name of the fault, for programs.
        headers: Additional headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Keep the parts."""
        super().__init__(status, message, headers)
        self.message, self.param, self.code = message, param, code

    def body(self) -> dict[str, Any]:
        """Return the error object."""
        return {
            "error": {
                "message": self.message,
                "type": error_type(self.status_code),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        """Return the HTTP answer."""
        return json_response(self.body(), self.status_code, self.headers)


class EngineFailedError(ApiError):
    """The engine could not compute a request."""

    def __init__(self, message: str) -> None:
        """Be a 500."""
        super().__init__(500, message, code="engine_failed")


def timed_out(seconds: float) -> ApiError:
    """Return the error of a request that took too long."""
    return ApiError(504, f"the request took longer than {seconds:g} s.", code="timeout")


def draining(retry_after_s: int) -> ApiError:
    """Return the error of a server that is going away."""
    return ApiError(
        503,
        "the server is shutting down.",
        code="shutting_down",
        headers={"Retry-After": str(retry_after_s)},
    )


def error_type(status: int) -> str:
    """Return the class of an error, by OpenAI's names."""
    named = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    return named.get(status, "invalid_request_error" if status < 500 else "server_error")


def of_infopt(error: InfoptError, retry_after_s: int = 1) -> ApiError:
    """Translate an error of the library."""
    if isinstance(error, QueueFullError):
        headers = {"Retry-After": str(retry_after_s)}
        return ApiError(429, str(error), code="queue_full", headers=headers)
    is_length = isinstance(error, PromptTooLongError | CapacityError)
    code = "context_length_exceeded" if is_length else "invalid_value"
    return ApiError(400, str(error), param=error.field, code=code)


def of_exception(error: Exception, retry_after_s: int = 1) -> ApiError | None:
    """Translate any error that has an answer; None for a bug."""
    if isinstance(error, ApiError):
        return error
    return of_infopt(error, retry_after_s) if isinstance(error, InfoptError) else None
