"""`RequestFailedError`: why a request got no whole answer."""

from __future__ import annotations

from typing import Any, Literal

from infopt.errors import InfoptError

FailureKind = Literal[
    "connection",
    "timeout",
    "HTTP status",
    "error event",
    "malformed stream",
    "no [DONE]",
    "no token",
]


class RequestFailedError(InfoptError):
    """A request failed; the run goes on and counts it.

    Args:
        kind: What results count it under (for a status, the status itself is).
        message: What was seen.
        status: The HTTP status, where that is the reason.
    """

    def __init__(self, kind: FailureKind, message: str, *, status: int | None = None) -> None:
        """Keep the kind apart from the message, which differs from request to request."""
        self.kind: FailureKind = kind
        self.status = status
        super().__init__(message, field="request", value=status)

    @property
    def label(self) -> str:
        """The kind, or ``HTTP 503``."""
        return self.kind if self.status is None else f"HTTP {self.status}"


def error_text(error: Any) -> str:
    """Return the message of an OpenAI error object, or the object as text, on one line."""
    if isinstance(error, dict):
        error = error.get("message") or error
    text = " ".join(str(error).split())
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."


_MAX_CHARS = 300
