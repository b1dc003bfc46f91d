"""What both completion endpoints do with a request, whole or streamed."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fastapi import Request, Response

from infopt.engine.constraint import ConstraintFactory
from infopt.sampling_params import SamplingParams
from infopt.serve.deltas import Delta
from infopt.serve.errors import ApiError, of_exception
from infopt.serve.loop import Submission
from infopt.serve.protocol.base import SamplingFields
from infopt.serve.responses import DONE, ChunkWriter, EventStreamResponse, event, json_response
from infopt.serve.service import Service
from infopt.serve.stream import OutputStream
from infopt.serve.usage import UsageCounter

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as the engine wants it.

    Attributes:
        prompts: Token ids of each prompt.
        params: Of each prompt; all have the same ``n``.
        constraint: Makes what limits the tokens of each completion.
    """

    prompts: list[list[int]]
    params: list[SamplingParams]
    constraint: ConstraintFactory | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """How a request for the model ``auto`` came to its model.

    Attributes:
        model: Who answers.
        reason: Why, in ASCII.
        asked_first: Model and usage of an answer that was thrown away.
    """

    model: str
    reason: str
    asked_first: Mapping[str, Any] | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer; names may hold any character, headers may not."""
        name = self.model.encode("unicode_escape").decode("ascii")
        reason = self.reason.encode("unicode_escape").decode("ascii")
        return {"x-infopt-model": name, "x-infopt-route-reason": reason}

    def usage(self) -> dict[str, Any]:
        """Return the ``route`` object of the usage."""
        first = {} if self.asked_first is None else {"asked_first": dict(self.asked_first)}
        return {"model": self.model, "reason": self.reason} | first


class DeltaStream(Protocol):
    """Deltas as they are made, or as they were."""

    def __aiter__(self) -> AsyncIterator[list[Delta]]:
        """Yield them until every completion has ended."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Generation(ABC):
    """One request: from its body to the answer.

    Args:
        service: Models and loop.
        body: The request.

    Attributes:
        route: How it came to its model; None where the request names it.
    """

    kind: str
    """Value of ``object`` in a whole answer."""
    chunk_kind: str
    """The same in an event of a stream."""
    id_prefix: str

    def __init__(self, service: Service, body: SamplingFields) -> None:
        """Find the model and note the time of arrival."""
        self.service = service
        self.model = service.model_of(body.model)
        self.arrival_s = self.model.engine.clock.now()
        self.route: Route | None = None
        self._num_prompt_tokens = 0
        self._wants_usage = body.wants_usage
        self._describe_energy = service.energy.usage if body.include_energy else None
        self._streams = bool(body.stream)
        self._id, self._created = f"{self.id_prefix}-{uuid.uuid4().hex}", int(time.time())
        if body.stream_options is not None and not self._streams:
            raise ApiError(
                400,
                "stream_options needs stream=true.",
                param="stream_options",
                code="invalid_value",
            )

    @abstractmethod
    def prepare(self) -> Prepared:
        """Encode, render, compile: what takes time and is done off the event loop."""

    @abstractmethod
    def choice(self, delta: Delta) -> dict[str, Any]:
        """Return the answer that a whole completion, given as one delta, becomes."""

    @abstractmethod
    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return the streamed choices that a delta becomes; none if there is nothing to show."""

    async def respond(self, request: Request) -> Response:
        """Answer; if the client hangs up the request is aborted wherever it is."""
        return await self.deliver(request, await until_disconnect(request, self._start()))

    async def deliver(self, request: Request, stream: DeltaStream) -> Response:
        """Send the deltas of a stream as the answer, in the form that was asked for."""
        usage = self.usage_counter()
        headers = {} if self.route is None else self.route.headers()
        if self._streams:
            return EventStreamResponse(self._events(stream, usage), stream.close, headers)
        try:
            return await until_disconnect(request, self._whole(stream, usage, headers))
        finally:
            stream.close()

    async def prepared(self) -> Prepared:
        """Prepare, off the event loop."""
        ready = await self.service.run_aside(self.prepare)
        self._num_prompt_tokens = sum(map(len, ready.prompts))
        return ready

    async def submit(self, ready: Prepared) -> OutputStream:
        """Queue what was prepared."""
        return await self.service.submit(
            Submission(
                self.model.name, ready.prompts, ready.params, self.arrival_s, ready.constraint
            )
        )

    def usage_counter(self) -> UsageCounter:
        """Return a counter for the answer to what was prepared."""
        route = None if self.route is None else self.route.usage()
        return UsageCounter(self._num_prompt_tokens, self._describe_energy, route)

    async def _start(self) -> OutputStream:
        return await self.submit(await self.prepared())

    async def _whole(
        self, stream: DeltaStream, usage: UsageCounter, headers: Mapping[str, str]
    ) -> Response:
        merged: dict[tuple[int, int], Delta] = {}
        async for deltas in stream:
            for delta in deltas:
                usage.add(delta)
                key = (delta.prompt_index, delta.index)
                merged[key] = _merge(merged[key], delta) if key in merged else delta
        choices = [self.choice(merged[key]) for key in sorted(merged)]
        body = self._head(self.kind) | {"choices": choices, "usage": usage.to_dict()}
        return json_response(body, headers=headers)

    async def _events(self, stream: DeltaStream, usage: UsageCounter) -> AsyncIterator[bytes]:
        head = self._head(self.chunk_kind)
        writer = ChunkWriter(head, {"usage": None} if self._wants_usage else {})
        try:
            async for deltas in stream:
                events: list[bytes] = []
                for delta in deltas:
                    usage.add(delta)
                    events += map(writer.write, self.chunks(delta))
                if events:
                    yield b"".join(events)
            if self._wants_usage:
                yield event(head | {"choices": [], "usage": usage.to_dict()})
            yield DONE
        except Exception as error:  # the status is sent: it can only travel as an event
            answer = of_exception(error)
            if answer is None:
                logger.exception("a stream failed")
                answer = ApiError(500, "internal error.", code="internal_error")
            yield event(answer.body())

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.model.name,
        }


def _merge(first: Delta, second: Delta) -> Delta:
    """Append ``second`` to ``first``."""
    first.text += second.text
    first.token_ids += second.token_ids
    if first.logprobs is not None and second.logprobs is not None:
        first.logprobs += second.logprobs
    first.finish_reason, first.stop_reason = second.finish_reason, second.stop_reason
    first.num_cached_tokens = second.num_cached_tokens
    return first


class ClientGoneError(ApiError):
    """The client hung up; nobody reads the answer."""

    def __init__(self) -> None:
        """Have the status that logs use for this."""
        super().__init__(499, "the client closed the connection.", code="client_closed")


async def until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do some work unless the client hangs up first, in which case it is cancelled.

    Raises:
        ClientGoneError: If the client hung up.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for pending in (task, watch):
            pending.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
