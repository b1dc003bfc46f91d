"""What must hold of each answer of a soak, by the kind of its request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from infopt.bench.soak_answers import Answer, Choice, WrongAnswerError, read_answer, strict_json
from infopt.bench.soak_request import CHAT, SoakRequest


def check_reply(request: SoakRequest, status: int, body: bytes) -> tuple[Answer | None, list[str]]:
    """Return the answer, if there is one, and everything that is wrong with a reply."""
    if status not in request.statuses:
        return None, [f"status {status} instead of {request.statuses[0]}: {body[:300]!r}"]
    try:
        if status != 200:
            _check_error(request, body)
            return None, []
        answer = read_answer(request, body)
        return answer, [fault for check in _CHECKS for fault in check(request, answer)]
    except WrongAnswerError as error:
        return None, [error.message]
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        return None, [f"the answer lacks a part ({error!r}): {body[:300]!r}"]


def _check_error(request: SoakRequest, body: bytes) -> None:
    if request.has_error_body:
        error = strict_json(body)["error"]
        if set(error) != {"message", "type", "param", "code"} or not error["message"]:
            raise WrongAnswerError(f"not the form of an error: {error}.")


def _choices(request: SoakRequest, answer: Answer) -> Iterator[str]:
    """Every completion of every prompt is there and has ended; the role came once in chat."""
    prompt = request.body.get("prompt")
    num_prompts = len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str) else 1
    expected = [*range(num_prompts * request.body.get("n", 1))]
    if sorted(answer.choices) != expected:
        yield f"choices {sorted(answer.choices)} instead of {expected}"
    for choice in answer.choices.values():
        if choice.finish_reason not in ("stop", "length", "tool_calls"):
            yield f"finish reason {choice.finish_reason!r}"
        if choice.num_roles != (request.path == CHAT):
            yield f"the role came {choice.num_roles} times"


def _usage(request: SoakRequest, answer: Answer) -> Iterator[str]:
    """As many tokens as asked for, where nothing can end the answer; never more."""
    options = request.body.get("stream_options") or {}
    is_due = not request.body.get("stream") or options.get("include_usage", False)
    if (answer.usage is not None) != is_due:
        yield f"usage is {answer.usage}"
    if answer.usage is None:
        return
    most = request.body["max_tokens"] * len(answer.choices)
    num_tokens = answer.usage["completion_tokens"]
    is_exact = request.body.get("ignore_eos") and "stop" not in request.body
    if num_tokens > most or (is_exact and num_tokens != most) or num_tokens < 1:
        yield f"{num_tokens} tokens, asked for {'' if is_exact else 'at most '}{most}"
    if answer.usage["total_tokens"] != answer.usage["prompt_tokens"] + num_tokens:
        yield f"usage does not add up: {answer.usage}"


def _stops(request: SoakRequest, answer: Answer) -> Iterator[str]:
    stops = request.body.get("stop", ())
    for choice in answer.choices.values():
        shown = [stop for stop in stops if stop in choice.text]
        if shown:
            yield f"the stop string {shown[0]!r} is in {choice.text!r}"
        if choice.stop_reason is not None and choice.stop_reason not in stops:
            yield f"stop reason {choice.stop_reason!r}"


def _logprobs(request: SoakRequest, answer: Answer) -> Iterator[str]:
    asked = request.body.get("logprobs")
    for choice in answer.choices.values():
        if asked is None:
            if choice.logprobs is not None:
                yield "log-probabilities that nobody asked for"
            continue
        values = [_logprob(entry) for entry in choice.logprobs or ()]
        is_echo = bool(request.body.get("echo"))
        if not values or any(v is None or v > 0 for v in values[is_echo:]):
            yield f"log-probabilities {values}"
    if asked is not None and answer.usage is not None:
        echoed = answer.usage["prompt_tokens"] if request.body.get("echo") else 0
        num_entries = sum(len(c.logprobs or ()) for c in answer.choices.values())
        if num_entries != answer.usage["completion_tokens"] + echoed * len(answer.choices):
            yield f"{num_entries} log-probabilities for {answer.usage}"


def _logprob(entry: Any) -> float | None:
    return entry["logprob"] if isinstance(entry, dict) else entry[1]


def _form(request: SoakRequest, answer: Answer) -> Iterator[str]:
    """The limit of tokens leaves room for the longest text of the form, so none may be cut."""
    for choice in answer.choices.values():
        if request.pattern is not None and not re.fullmatch(request.pattern, choice.text):
            yield f"{choice.text!r} does not match {request.pattern!r}"
        if request.schema is not None:
            yield from _schema_faults(choice.text, request.schema)


def _tools(request: SoakRequest, answer: Answer) -> Iterator[str]:
    if request.tools:
        for choice in answer.choices.values():
            yield from _call_faults(request, choice)


def _call_faults(request: SoakRequest, choice: Choice) -> Iterator[str]:
    wanted = request.body["tool_choice"]
    names = [*request.tools] if wanted == "required" else [wanted["function"]["name"]]
    if len(choice.calls) != 1 or choice.calls[0][0] not in names:
        yield f"calls {choice.calls} instead of one of {names}, text {choice.text!r}"
        return
    name, arguments = choice.calls[0]
    yield from _schema_faults(arguments, request.tools[name])
    reason = "tool_calls" if wanted == "required" else "stop"
    if choice.finish_reason != reason:
        yield f"finish reason {choice.finish_reason!r} instead of {reason!r}"


def _schema_faults(text: str, schema: dict[str, Any]) -> Iterator[str]:
    import jsonschema

    try:
        jsonschema.validate(json.loads(text), schema)
    except ValueError:
        yield f"not JSON: {text!r}"
    except jsonschema.ValidationError as error:
        yield f"{text!r} is not of the schema: {error.message}"


_CHECKS: tuple[Callable[[SoakRequest, Answer], Iterator[str]], ...] = (
    _choices,
    _usage,
    _stops,
    _logprobs,
    _form,
    _tools,
)
