"""The model loop: one thread that steps all engines in turn.

Two loops would be two thread pools on the same cores. Other threads never touch an engine: they put
commands into a queue, which the loop empties between steps.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from infopt.engine.constraint import ConstraintFactory
from infopt.engine.engine import Engine
from infopt.errors import InfoptError
from infopt.outputs import RequestOutput
from infopt.sampling_params import SamplingParams
from infopt.serve.deltas import Delta, EnergyUse, OutputTracker
from infopt.serve.errors import EngineFailedError
from infopt.serve.stream import OutputStream

logger = logging.getLogger(__name__)

Observer = Callable[[str, RequestOutput, Sequence[Delta]], None]
"""Sees model name, output and its new deltas after each step."""


class EnergyAccounts(Protocol):
    """Knows what requests have used; asked on the loop's thread."""

    def take(self, model: str, request_id: str) -> EnergyUse:
        """Close the account of a request that has ended."""
        ...

    def forget(self, model: str) -> None:
        """Close the accounts of all requests of a model."""
        ...


@dataclass(slots=True)
class _Active:
    """A request an engine is working on."""

    stream: OutputStream
    tracker: OutputTracker


@dataclass(frozen=True, slots=True)
class Submission:
    """What one HTTP request asks of one engine.

    Attributes:
        model: Name of the engine.
        prompts: Token ids of each prompt.
        params: Of each prompt; all have the same ``n``.
        arrival_s: When the request came in, on the engine's clock.
        constraint: Makes what limits the tokens of each completion.
    """

    model: str
    prompts: list[list[int]]
    params: list[SamplingParams]
    arrival_s: float
    constraint: ConstraintFactory | None = None


class ModelLoop:
    """Runs engines on a thread of its own.

    Args:
        engines: By model name.
        observe: Told about every output, on the loop's thread.
        energy: Asked for the energy of every request that ends, on the same thread.

    Attributes:
        step_cpu_s: CPU seconds of the loop's thread within steps of the engines.
        other_cpu_s: The same outside of steps, as of its last turn.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        observe: Observer = lambda *_: None,
        energy: EnergyAccounts | None = None,
    ) -> None:
        """Prepare; `start` makes the thread."""
        self.engines, self._observe, self._energy = dict(engines), observe, energy
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._active: dict[str, dict[str, _Active]] = {name: {} for name in self.engines}
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="infopt-model-loop", daemon=True)
        self._ids = itertools.count()
        self._is_stopping = False
        self.step_cpu_s = self.other_cpu_s = 0.0

    @property
    def num_active(self) -> int:
        """Requests whose outputs go to a stream."""
        return sum(len(active) for active in self._active.values())

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self, event_loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread; deltas go to ``event_loop``."""
        self._event_loop = event_loop
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End after the current step; unfinished requests are dropped."""
        self._is_stopping = True
        self._commands.put(None)
        self._thread.join(timeout_s)

    def submit(self, submission: Submission) -> OutputStream:
        """Queue a request; to be called on the event loop."""
        assert self._event_loop is not None, "the loop is not started"
        name = f"req-{next(self._ids)}"
        request_ids = [f"{name}-{i}" for i in range(len(submission.prompts))]
        cancel = partial(self._post, partial(self._abort, submission.model, request_ids))
        num_completions = sum(params.n for params in submission.params)
        stream = OutputStream(self._event_loop, cancel, num_completions)
        self._post(partial(self._add, submission, request_ids, stream))
        return stream

    async def call(self, function: Callable[[], None]) -> None:
        """Run a function on the loop's thread, between steps, and wait for it."""
        assert self._event_loop is not None, "the loop is not started"
        loop = self._event_loop
        future: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error else future.set_result(None)

        def run() -> None:
            try:
                function()
            except Exception as error:  # handed to the caller
                loop.call_soon_threadsafe(settle, error)
            else:
                loop.call_soon_threadsafe(settle, None)

        self._post(run)
        await future

    def _post(self, command: Callable[[], None]) -> None:
        self._commands.put(command)

    # ---------------------------------------------------------------- on the loop's thread

    def _run(self) -> None:
        # The number of OpenMP threads belongs to the calling thread, and this one is new.
        torch.set_num_threads(torch.get_num_threads())
        while not self._is_stopping:
            self.other_cpu_s = time.thread_time() - self.step_cpu_s
            self._execute_commands()
            for name, engine in self.engines.items():
                if engine.has_unfinished and not self._is_stopping:
                    self._step(name, engine)

    def _execute_commands(self) -> None:
        """Empty the queue; where no engine has work, wait for something to do."""
        is_idle = not any(engine.has_unfinished for engine in self.engines.values())
        while True:
            try:
                command = self._commands.get(block=is_idle)
            except queue.Empty:
                return
            if command is not None:
                command()
            is_idle = False

    def _add(self, submission: Submission, request_ids: list[str], stream: OutputStream) -> None:
        """Queue all prompts of a request, or none."""
        engine, active = self.engines[submission.model], self._active[submission.model]
        for index, request_id in enumerate(request_ids):
            try:
                engine.add_request(
                    request_id,
                    submission.prompts[index],
                    submission.params[index],
                    arrival_s=submission.arrival_s,
                    constraint=submission.constraint,
                )
            except Exception as error:  # a bug must end this request and not the loop
                if not isinstance(error, InfoptError):
                    logger.exception("a request could not be added")
                    error = EngineFailedError("the request could not be queued.")
                self._abort(submission.model, request_ids[:index])
                self._call_soon(partial(stream.fail, error))
                return
            active[request_id] = _Active(stream, OutputTracker(index, submission.params[index].n))
        self._call_soon(stream.accept)

    def _abort(self, model: str, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._active[model].pop(request_id, None)
            self.engines[model].abort(request_id)

    def _step(self, name: str, engine: Engine) -> None:
        num_ended = sum(engine.stats.num_finished.values())
        start_s = time.thread_time()
        try:
            outputs = engine.step()
        except Exception:  # the engine has ended the requests of this step; the next reports them
            logger.exception("a step of %s failed", name)
            if sum(engine.stats.num_finished.values()) == num_ended:
                self._fail_all(name, engine)  # it would fail in the same way for ever
            return
        finally:
            self.step_cpu_s += time.thread_time() - start_s
        self._publish(name, outputs)

    def _publish(self, name: str, outputs: list[RequestOutput]) -> None:
        active = self._active[name]
        news: list[tuple[OutputStream, list[Delta]]] = []
        failed: set[OutputStream] = set()
        for output in outputs:
            request = active.get(output.request_id)
            energy = None
            if output.finished and self._energy is not None:
                energy = self._energy.take(name, output.request_id)
            if request is None:
                continue
            deltas = request.tracker.update(output)
            if deltas:
                deltas[-1].energy = energy
            self._observe(name, output, deltas)
            news.append((request.stream, [d for d in deltas if d.finish_reason != "error"]))
            if any(d.finish_reason == "error" for d in deltas):
                failed.add(request.stream)
            if output.finished:
                del active[output.request_id]
        if news:
            self._call_soon(partial(_deliver, news, failed))

    def _fail_all(self, name: str, engine: Engine) -> None:
        streams = {request.stream for request in self._active[name].values()}
        self._active[name].clear()
        engine.abort_all()
        if self._energy is not None:
            self._energy.forget(name)
        self._call_soon(partial(_deliver, [], streams))

    def _call_soon(self, function: Callable[[], None]) -> None:
        assert self._event_loop is not None
        try:
            self._event_loop.call_soon_threadsafe(function)
        except RuntimeError:  # the event loop is closed: nobody listens any more
            logger.debug("dropped an answer: the event loop is closed")


def _deliver(news: list[tuple[OutputStream, list[Delta]]], failed: set[OutputStream]) -> None:
    """Hand the deltas of a step to their streams, on the event loop."""
    for stream, deltas in news:
        stream.deliver(deltas)
    for stream in failed:
        stream.fail(EngineFailedError("the engine failed while computing this request."))
