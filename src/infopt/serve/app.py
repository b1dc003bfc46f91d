"""Puts the application together."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute

from infopt import __version__
from infopt.serve.error_handlers import install_error_handlers
from infopt.serve.middleware import ApiKeyGate, BodyGate, LifecycleGate
from infopt.serve.openapi import describe
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
    needs_key = config.api_key is not None
    description = functools.cache(lambda: describe(app, needs_key=needs_key))
    app.openapi = description  # type: ignore[method-assign]
    install_error_handlers(app, config.retry_after_s)
    _add_gates(app, service)
    return app


def _add_gates(app: FastAPI, service: Service) -> None:
    """Add what stands before every route."""
    config = service.config
    # The last one added is the first that a request meets.
    app.add_middleware(BodyGate, max_bytes=config.max_body_bytes, routes=_paths("POST"))
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


def _paths(method: str | None = None) -> frozenset[str]:
    """Return the paths without a variable part, of all methods or of one."""
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    chosen = [route.path for route in routes if method is None or method in (route.methods or ())]
    return frozenset(path for path in chosen if "{" not in path)
