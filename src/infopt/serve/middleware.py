"""What stands before every route: API key, life cycle, size and type of the body."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infopt.serve.errors import ApiError, draining
from infopt.serve.openapi import OPEN_PATHS
from infopt.serve.service import Service

ALWAYS_PATHS = ("/health", "/metrics")
"""Routes that answer whatever the state of the server."""


class ApiKeyGate:
    """Refuses requests without the key.

    Args:
        app: What comes after.
        api_key: The key.
    """

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        """Keep the expected header."""
        self._app, self._expected = app, f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compare the key in constant time."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = Headers(scope=scope).get("authorization", "").encode("latin-1", "replace")
            if not hmac.compare_digest(given, self._expected):
                error = ApiError(
                    401,
                    "the API key is missing or wrong: send Authorization: Bearer KEY.",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                return await error.response()(scope, receive, send)
        return await self._app(scope, receive, send)


class LifecycleGate:
    """Counts requests in flight and answers; refuses them unless the server is ready.

    Args:
        app: What comes after.
        service: Knows the state.
        routes: Paths that metrics may name; anything else is "other".
    """

    def __init__(self, app: ASGIApp, service: Service, routes: frozenset[str]) -> None:
        """Keep what is needed."""
        self._app, self._service, self._routes = app, service, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with 503."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        send = self._counted(scope["path"], send)
        if scope["path"] in ALWAYS_PATHS:
            return await self._app(scope, receive, send)
        if self._service.state != "ready":
            return await self._refusal().response()(scope, receive, send)
        self._service.num_in_flight += 1
        try:
            return await self._app(scope, receive, send)
        finally:
            self._service.num_in_flight -= 1

    def _refusal(self) -> ApiError:
        state, retry_after_s = self._service.state, self._service.config.retry_after_s
        if state == "draining":
            return draining(retry_after_s)
        message = {"starting": "the server is warming up.", "failed": "the model loop has failed."}
        return ApiError(
            503, message[state], code=state, headers={"Retry-After": str(retry_after_s)}
        )

    def _counted(self, path: str, send: Send) -> Send:
        route = path if path in self._routes else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._service.metrics.http_requests.labels(route, message["status"]).inc()
            await send(message)

        return counted


class BodyGate:
    """Refuses bodies that are no JSON by their header, or too long.

    Args:
        app: What comes after.
        max_bytes: Longest body.
        routes: Paths that take a body; elsewhere it is the method that is wrong.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, routes: frozenset[str]) -> None:
        """Keep what is needed."""
        self._app, self._max_bytes, self._routes = app, max_bytes, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the headers, and count the bytes of a body without a length as they come."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        if not is_post or scope["path"] not in self._routes:
            return await self._app(scope, receive, send)
        error = self._refusal(Headers(scope=scope))
        if error is not None:
            return await error.response()(scope, receive, send)
        return await self._app(scope, self._limited(receive), send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return ApiError(
                415,
                f"the content type is {kind or 'missing'}, it must be application/json.",
                code="unsupported_media_type",
            )
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_bytes:
            return self._too_long()
        return None

    def _limited(self, receive: Receive) -> Receive:
        num_bytes = 0

        async def limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise self._too_long()
            return message

        return limited

    def _too_long(self) -> ApiError:
        return ApiError(
            413, f"the body is longer than {self._max_bytes} bytes.", code="body_too_long"
        )
