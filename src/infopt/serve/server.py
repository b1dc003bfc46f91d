"""Runs the application: loading, listening, and going away in good order."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from infopt.config import EngineConfig
from infopt.engine.engine import Engine
from infopt.engine.loader import build_engine
from infopt.errors import ConfigError
from infopt.serve.app import create_app
from infopt.serve.config import ServeConfig
from infopt.serve.energy import read_constants
from infopt.serve.fast_parts import choose_loop, choose_parser
from infopt.serve.service import Service

if TYPE_CHECKING:
    from infopt.select.routing import Policy

logger = logging.getLogger(__name__)

DEFAULT_MAX_NUM_WAITING = 1024
"""Longest queue of a served model whose configuration sets none."""

_LOOPBACK = ("127.0.0.1", "::1", "localhost")

_LAST_WORDS_S = 2.0
"""After the grace time, for the final error events to be sent."""


class Server(uvicorn.Server):
    """uvicorn that finishes running requests before it stops listening.

    The first SIGTERM or SIGINT begins to drain: new requests get 503, running ones go on for the
    grace time, what is left ends with an error. The second signal stops at once.

    Args:
        service: What to serve.
        announce: Told the address and the models' names once it listens.
    """

    def __init__(
        self, service: Service, announce: Callable[[str, list[str]], None] = lambda *_: None
    ) -> None:
        """Prepare; ``run`` serves until a signal comes."""
        config = service.config
        super().__init__(
            uvicorn.Config(
                create_app(service),
                host=config.host,
                port=config.port,
                log_level="warning",
                access_log=False,
                http=choose_parser(),
                loop=choose_loop(),
                server_header=False,
                timeout_graceful_shutdown=int(_LAST_WORDS_S) + 1,
            )
        )
        self.service, self._announce = service, announce
        self._is_draining = False
        self._event_loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it listens on."""
        return self.servers[0].sockets[0].getsockname()[:2]

    async def startup(self, *args: object, **kwargs: object) -> None:
        """Start listening."""
        self._event_loop = asyncio.get_running_loop()
        await super().startup(*args, **kwargs)  # type: ignore[arg-type]
        if self.started:
            host, port = self.address
            self._announce(f"http://{host}:{port}", list(self.service.models))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal, stop at once on the second."""
        if self._is_draining or self._event_loop is None:
            self.force_exit = self.should_exit = True
            return
        self._is_draining = True
        self._event_loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self.service.begin_drain()
        self._drain_task = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        grace_s = self.service.config.grace_s
        if not await self.service.drained(grace_s):
            logger.warning(
                "%d requests were not finished after %g s", self.service.num_in_flight, grace_s
            )
            self.service.drop_streams()
            await self.service.drained(_LAST_WORDS_S)
        self.should_exit = True


def run_server(
    configs: Sequence[EngineConfig],
    serve_config: ServeConfig,
    *,
    names: Sequence[str] = (),
    policy: Policy | None = None,
    announce: Callable[[str, list[str]], None] = lambda *_: None,
) -> None:
    """Load models and serve them until a signal comes.

    Args:
        configs: One per model.
        serve_config: How to listen.
        names: What requests call the models (default: from the configurations).
        policy: Chooses a model for requests that name ``auto``.
        announce: Told the address and the models' names once it listens.

    Raises:
        InfoptError: If an option is impossible, a model cannot be loaded, or the policy names one
            that is not served.
    """
    if serve_config.host not in _LOOPBACK and serve_config.api_key is None:
        logger.warning("%s can be reached by others, and no API key is set", serve_config.host)
    # What is wrong with the options is said before minutes are spent on loading.
    read_constants(serve_config.energy_constants)
    if policy is not None:
        from infopt.serve.routing import check_policy

        check_policy(policy, list(names) or [served_name(config) for config in configs])
    check_address(serve_config.host, serve_config.port)
    service = Service(load_engines(configs, names), serve_config, policy)
    server = Server(service, announce)
    try:
        server.run()
    finally:
        service.loop.stop()


def check_address(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on: unknown, not this machine's, or in use.

    Raises:
        ConfigError: Says what the system said.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            trial.bind(address)
    except OSError as error:
        raise ConfigError(
            f"The server cannot listen on {host}:{port}: {error.strerror}.",
            field="port",
            value=port,
            remedy="Give another --port (0 takes a free one) or --host.",
        ) from error


def load_engines(configs: Sequence[EngineConfig], names: Sequence[str] = ()) -> dict[str, Engine]:
    """Build one engine per configuration, by the name that requests use.

    Raises:
        ConfigError: Without models, with two of one name, or with one that has no tokenizer.
    """
    names = list(names) or [served_name(config) for config in configs]
    _check_names(names, configs)
    engines: dict[str, Engine] = {}
    for name, config in zip(names, configs, strict=True):
        limit = config.max_num_waiting or DEFAULT_MAX_NUM_WAITING
        engines[name] = build_engine(config.replace(max_num_waiting=limit))
    return engines


def served_name(config: EngineConfig) -> str:
    """Return the default name of a model: its slug, or the last part of its path."""
    path = Path(config.model)
    if path.exists():
        return path.stem if path.is_file() else path.resolve().name
    return config.model


def split_kv_memory(configs: Sequence[EngineConfig]) -> list[EngineConfig]:
    """Share the memory that each configuration would use alone among all of them."""
    return [
        config.replace(kv_cache_memory_gib=config.kv_cache_memory_gib / len(configs))
        for config in configs
    ]


def _check_names(names: Sequence[str], configs: Sequence[EngineConfig]) -> None:
    if not configs or len(names) != len(configs):
        raise ConfigError(
            f"{len(configs)} models and {len(names)} names.",
            field="served_model_name",
            value=list(names),
            remedy="Give at least one model, and one name per model or none.",
        )
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two models are called {name!r}.",
                field="served_model_name",
                value=name,
                remedy="Give them names with --served-model-name.",
            )
    for config in configs:
        if config.skip_tokenizer_init:
            raise ConfigError(
                "a served model needs its tokenizer.", field="skip_tokenizer_init", value=True
            )
