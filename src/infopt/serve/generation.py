"""What both completion endpoints do with a request, whole or streamed."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

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


class Generation(ABC):
    """One request: from its body to the answer.

    Args:
        service: Models and loop.
        body: The request.
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
        stream, usage = await until_disconnect(request, self._start())
        if self._streams:
            return EventStreamResponse(self._events(stream, usage), stream.close)
        try:
            return await until_disconnect(request, self._whole(stream, usage))
        finally:
            stream.close()

    async def _start(self) -> tuple[OutputStream, UsageCounter]:
        ready = await self.service.run_aside(self.prepare)
        submission = Submission(
            self.model.name, ready.prompts, ready.params, self.arrival_s, ready.constraint
        )
        stream = await self.service.submit(submission)
        return stream, UsageCounter(sum(map(len, ready.prompts)), self._describe_energy)

    async def _whole(self, stream: OutputStream, usage: UsageCounter) -> Response:
        merged: dict[tuple[int, int], Delta] = {}
        async for deltas in stream:
            for delta in deltas:
                usage.add(delta)
                key = (delta.prompt_index, delta.index)
                merged[key] = _merge(merged[key], delta) if key in merged else delta
        choices = [self.choice(merged[key]) for key in sorted(merged)]
        return json_response(self._head(self.kind) | {"choices": choices, "usage": usage.to_dict()})

    async def _events(self, stream: OutputStream, usage: UsageCounter) -> AsyncIterator[bytes]:
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
