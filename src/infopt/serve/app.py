"""Puts the application together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from infopt import __version__
from infopt.serve.error_handlers import install_error_handlers
from infopt.serve.middleware import ApiKeyGate, BodyGate, LifecycleGate
from infopt.serve.routes import router
from infopt.serve.service import Service

logger = logging.getLogger(__name__)


def create_app(service: Service) -> FastAPI:
    """Return the application: routes, error shapes, and the gates before them.

    Args:
        service: What the routes work with; the application starts and stops it.
    """
    config = service.config
    app = FastAPI(
        title="infopt",
        version=__version__,
        description="OpenAI-compatible inference. Unknown fields are refused by name.",
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.service = service
    app.include_router(router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    install_error_handlers(app, config.retry_after_s)
    # The last one added is the first that a request meets.
    app.add_middleware(BodyGate, max_bytes=config.max_body_bytes)
    app.add_middleware(LifecycleGate, service=service, routes=_paths())
    if config.api_key is not None:
        app.add_middleware(ApiKeyGate, api_key=config.api_key)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Warm up while ``/health`` already answers; stop the loop at the end."""
    service: Service = app.state.service
    warming = asyncio.create_task(_start(service))
    try:
        yield
    finally:
        warming.cancel()
        await asyncio.gather(warming, return_exceptions=True)
        await service.stop()


async def _start(service: Service) -> None:
    try:
        await service.start()
    except Exception:  # requests get 503 and /health says so
        logger.exception("the server could not warm up")
        service.fail()


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the description, without the 422 that FastAPI adds: a bad body is a 400 here."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        for operations in schema["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for unused in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(unused, None)
        app.openapi_schema = schema
    return app.openapi_schema


def _paths() -> frozenset[str]:
    paths = (getattr(route, "path", "") for route in router.routes)
    return frozenset(path for path in paths if "{" not in path)
