"""Reads answers of the server, whole or streamed, into one form, strictly."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from infopt.bench.soak_request import CHAT, SoakRequest
from infopt.errors import InfoptError


class WrongAnswerError(InfoptError):
    """An answer is not what the API says."""


@dataclass(slots=True)
class Choice:
    """One answer of a request; pieces of a stream are put together.

    Attributes:
        text: Content.
        calls: Name and arguments of each tool call.
        logprobs: One entry per token, in the shape of the route; None where there are none.
        finish_reason: Why it ended.
        stop_reason: The stop string or id that ended it.
        num_roles: How often the role was sent.
    """

    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    logprobs: list[Any] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    num_roles: int = 0

    def comparable(self) -> dict[str, Any]:
        """Return what must be the same whenever the request is repeated.

        Log-probabilities are compared to the bit, by way of their shortest decimal form.
        """
        return {
            "text": self.text,
            "calls": self.calls,
            "logprobs": self.logprobs,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
        }


@dataclass(slots=True)
class Answer:
    """All of an answer.

    Attributes:
        choices: By index.
        usage: Token counts; None for a stream that was not asked for them.
    """

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None

    def comparable(self) -> list[dict[str, Any]]:
        """Return what must be the same whenever the request is repeated."""
        return [self.choices[index].comparable() for index in sorted(self.choices)]


def read_answer(request: SoakRequest, body: bytes) -> Answer:
    """Read an answer with status 200.

    Raises:
        WrongAnswerError: If its form is wrong, or a stream ends with an error.
    """
    answer = Answer()
    for part in _events(body) if request.body.get("stream") else [strict_json(body)]:
        if "error" in part:
            raise WrongAnswerError(f"the stream ended with {part['error']}.")
        answer.usage = part.get("usage") or answer.usage
        for piece in part["choices"]:
            choice = answer.choices.setdefault(piece["index"], Choice())
            _add(choice, piece, is_chat=request.path == CHAT)
    return answer


def strict_json(raw: bytes | str) -> Any:
    """Parse JSON as the standard has it.

    Raises:
        WrongAnswerError: For anything else, NaN and infinities included.
    """
    try:
        return json.loads(raw, parse_constant=_refuse)
    except ValueError as error:
        raise WrongAnswerError(f"not JSON ({error}): {raw[:200]!r}.") from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _events(body: bytes) -> list[dict[str, Any]]:
    """Return the data of each event; exactly the last one is ``[DONE]``, or an error."""
    *blocks, rest = body.split(b"\n\n")
    if rest or not blocks or not all(b.startswith(b"data: ") and b"\n" not in b for b in blocks):
        raise WrongAnswerError(f"not a stream of events: ...{body[-200:]!r}.")
    data = [block.removeprefix(b"data: ") for block in blocks]
    is_done = data[-1] == b"[DONE]"
    events = [strict_json(item) for item in (data[:-1] if is_done else data)]
    if not is_done and "error" not in events[-1]:
        raise WrongAnswerError(f"the stream has no end: ...{body[-200:]!r}.")
    return events


def _add(choice: Choice, piece: dict[str, Any], *, is_chat: bool) -> None:
    if choice.finish_reason is not None:
        raise WrongAnswerError("something follows the finish reason.")
    message = piece.get("delta", piece.get("message", {})) if is_chat else piece
    choice.text += message.get("content" if is_chat else "text") or ""
    choice.num_roles += "role" in message
    for call in message.get("tool_calls") or ():
        _add_call(choice.calls, call)
    if piece["logprobs"] is not None:
        choice.logprobs = (choice.logprobs or []) + _entries(piece["logprobs"], is_chat)
    choice.finish_reason, choice.stop_reason = piece["finish_reason"], piece.get("stop_reason")


def _add_call(calls: list[list[str]], call: dict[str, Any]) -> None:
    index = call.get("index", len(calls))
    if index == len(calls):
        calls.append([call["function"]["name"], ""])
    calls[index][1] += call["function"]["arguments"]


def _entries(logprobs: dict[str, Any], is_chat: bool) -> list[Any]:
    """Return one entry per token."""
    if is_chat:
        return logprobs["content"]
    keys = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    if len({len(logprobs[key]) for key in keys}) > 1:
        raise WrongAnswerError("the lists of the log-probabilities differ in length.")
    return [list(entry) for entry in zip(*(logprobs[key] for key in keys), strict=True)]
