"""`Service`: the models, the loop that runs them, and the state of the server's life."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from infopt.engine.engine import Engine
from infopt.errors import nearest
from infopt.sampling_params import SamplingParams
from infopt.serve.config import ServeConfig
from infopt.serve.energy import EnergyBook, EnergyCollector, read_constants
from infopt.serve.errors import ApiError, draining, timed_out
from infopt.serve.health_metrics import add_health_metrics
from infopt.serve.loop import ModelLoop, Submission
from infopt.serve.metrics import Metrics
from infopt.serve.stream import OutputStream
from infopt.structured import GrammarCompiler

if TYPE_CHECKING:
    from infopt.select.routing import Policy
    from infopt.serve.routing import Router

logger = logging.getLogger(__name__)

T = TypeVar("T")
State = Literal["starting", "ready", "draining", "failed"]

AUTO = "auto"
"""The model that a routing policy stands behind."""

_WARMUP_TOKENS = 16


class ServedModel:
    """A model that requests can name.

    Args:
        name: What requests call it.
        engine: Runs it; has a tokenizer.

    Attributes:
        created: Unix time at which it was loaded.
        compiler: Makes constraints of schemas and grammars.
    """

    def __init__(self, name: str, engine: Engine) -> None:
        """Note the time."""
        assert engine.tokenizer is not None, "checked by load_engines"
        self.name, self.engine, self.tokenizer = name, engine, engine.tokenizer
        self.created = int(time.time())
        eos_token_ids = engine.runner.model.config.eos_token_ids
        self.compiler = GrammarCompiler(self.tokenizer, eos_token_ids)

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output."""
        return self.engine.checker.max_model_len


class Service:
    """What the routes work with.

    Args:
        engines: By the name that requests use.
        config: Limits and times.
        policy: Chooses a model for requests that name ``auto``; None serves no such model.

    Attributes:
        router: Answers those requests.
        num_in_flight: HTTP requests being answered.
        aside_cpu_s: CPU seconds of what `run_aside` ran.
    """

    def __init__(
        self, engines: Mapping[str, Engine], config: ServeConfig, policy: Policy | None = None
    ) -> None:
        """Prepare; `start` starts the loop.

        Raises:
            ConfigError: If the policy names a model that is not served.
        """
        self.config = config
        self.models = {name: ServedModel(name, engine) for name, engine in engines.items()}
        self.metrics = Metrics(engines)
        self.energy = EnergyBook(engines, config.energy, read_constants(config.energy_constants))
        self.metrics.registry.register(EnergyCollector(self.energy))
        self.loop = ModelLoop(engines, self.metrics.observe, self.energy)
        self.num_in_flight = 0
        self._state: State = "starting"
        self._streams: set[OutputStream] = set()
        # One thread: encoding is short, and more of them would take cores from the model.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="infopt-tokenizer")
        self.aside_cpu_s = 0.0
        self.router = None if policy is None else _router(policy, self)
        add_health_metrics(self)

    @property
    def state(self) -> State:
        """Where the server is in its life."""
        if self._state != "starting" and not self.loop.is_alive:
            return "failed"
        return self._state

    @property
    def num_streams(self) -> int:
        """Answers that are being read."""
        return len(self._streams)

    async def start(self) -> None:
        """Start the loop and run every model once, so that no request meets a cold start."""
        self.loop.start(asyncio.get_running_loop())
        for model in self.models.values():
            await self.loop.call(lambda engine=model.engine: warm_up(engine))
        await self.loop.call(self.energy.reset)
        if self._state == "starting":
            self._state = "ready"

    async def stop(self) -> None:
        """Stop the loop; open streams end with an error."""
        self.drop_streams()
        await asyncio.to_thread(self.loop.stop)
        self._executor.shutdown(wait=False, cancel_futures=True)

    def fail(self) -> None:
        """Note that the models cannot run."""
        self._state = "failed"

    def begin_drain(self) -> None:
        """Take no new requests from now on."""
        self._state = "draining"

    async def drained(self, grace_s: float) -> bool:
        """Wait until no request is in flight; False if the time was too short."""
        deadline = time.monotonic() + grace_s
        while self.num_in_flight and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return self.num_in_flight == 0

    def drop_streams(self) -> None:
        """End every open stream with an error."""
        for stream in list(self._streams):
            stream.fail(draining(self.config.retry_after_s))

    def model_of(self, name: str | None) -> ServedModel:
        """Return the model a request names; with one model the name may be left out.

        Raises:
            ApiError: 404 that lists the models.
        """
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name in self.models:
            return self.models[name]
        known = [*self.models, *([] if self.router is None else [AUTO])]
        asked = "no model is named" if name is None else f"there is no model {name!r}"
        hint = nearest(name or "", known)
        if name in known:
            asked, hint = f"{name!r} stands for several models, each with its own tokens", ""
        raise ApiError(
            400 if name is None else 404,
            f"{asked}.{hint} Models: {', '.join(known)}.",
            param="model",
            code="model_not_found",
        )

    async def run_aside(self, function: Callable[[], T]) -> T:
        """Run something short but blocking (encoding, templates, grammars) off the event loop."""
        timed = partial(self._run_timed, function)
        return await asyncio.get_running_loop().run_in_executor(self._executor, timed)

    def _run_timed(self, function: Callable[[], T]) -> T:
        start_s = time.thread_time()
        try:
            return function()
        finally:
            self.aside_cpu_s += time.thread_time() - start_s  # one thread: nobody else adds to it

    async def submit(self, submission: Submission) -> OutputStream:
        """Queue a request and wait until the engine has taken it.

        Raises:
            Exception: What the engine refused it with.
        """
        stream = self.loop.submit(submission)
        self._streams.add(stream)
        stream.on_close = lambda: self._streams.discard(stream)
        timeout_s = self.config.request_timeout_s
        clock = self.models[submission.model].engine.clock
        waited_s = clock.now() - submission.arrival_s
        stream.fail_after(max(timeout_s - waited_s, 0.0), timed_out(timeout_s))
        try:
            await stream.accepted()
        except BaseException:
            stream.close()
            raise
        return stream


def _router(policy: Policy, service: Service) -> Router:
    # Policies come with pandas and more, which a server without one does not need.
    from infopt.serve.routing import Router

    return Router(policy, service)


def warm_up(engine: Engine) -> None:
    """Run a few tokens, greedy and drawn, then forget that it happened."""
    longest = min(engine.checker.max_model_len, engine.checker.pool_tokens)
    num_output = min(4, longest - 1)
    prompt = [0] * max(min(_WARMUP_TOKENS, longest - num_output), 1)
    for index, temperature in enumerate((0.0, 1.0)):
        params = SamplingParams(
            max_tokens=num_output, temperature=temperature, ignore_eos=True, seed=0, logprobs=1
        )
        engine.add_request(f"warm-up-{index}", prompt, params)
        engine.step()  # out of the queue, which may be short
    while engine.has_unfinished:
        engine.step()
    engine.reset_prefix_cache()
    engine.reset_stats()
