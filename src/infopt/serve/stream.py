"""`OutputStream`: the event loop's end of a request that the model thread is working on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from infopt.serve.deltas import Delta


class OutputStream:
    """Deltas of one HTTP request (all its prompts and completions), as they are made.

    Everything but construction happens on the event loop.

    Args:
        loop: The event loop.
        cancel: Called once if the stream is closed before its end.
        num_completions: Completions that must finish.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, cancel: Callable[[], None], num_completions: int
    ) -> None:
        """Wait for the model thread to accept or refuse the request."""
        self._loop, self._cancel = loop, cancel
        self._num_unfinished = num_completions
        self._deltas: list[Delta] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_accepted = False
        self._is_closed = False
        self.on_close: Callable[[], None] = lambda: None
        """Called once when the stream is let go of."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come from the model thread."""
        return self._num_unfinished == 0 or self._error is not None

    def accept(self) -> None:
        """Note that the request is queued."""
        self._is_accepted = True
        self._wake()

    def deliver(self, deltas: list[Delta]) -> None:
        """Take what a step added."""
        if self._error is None:
            self._deltas.extend(deltas)
            self._num_unfinished -= sum(d.finish_reason is not None for d in deltas)
            self._wake()

    def fail(self, error: Exception) -> None:
        """End with an error; what was delivered before it can still be read."""
        if not self.is_finished and not self._is_closed:
            self._error = error
            self._cancel()
            self._wake()

    def fail_after(self, seconds: float, error: Exception) -> None:
        """Fail with ``error`` unless the stream has ended by then."""
        self._timer = self._loop.call_later(seconds, self.fail, error)

    def close(self) -> None:
        """Let go; a request that still runs is aborted."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.is_finished:
            self._cancel()
        self.on_close()

    async def accepted(self) -> None:
        """Wait until the request is queued.

        Raises:
            Exception: What the engine refused it with.
        """
        while not self._is_accepted and self._error is None:
            await self._wait()
        if not self._is_accepted and self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        """Yield deltas, all that have come since the last time, until every completion ended.

        Raises:
            Exception: What ended the request early.
        """
        while True:
            while not self._deltas and not self.is_finished:
                await self._wait()
            if self._deltas:
                deltas, self._deltas = self._deltas, []
                yield deltas
            elif self._error is not None:
                raise self._error
            else:
                return

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
