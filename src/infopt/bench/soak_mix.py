"""The requests of a soak: seeded, of every kind, well-formed and not.

Request i depends on the seed and on i alone, so that one that failed can be made again by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from infopt.bench.soak_misuse import MISUSES, misuse
from infopt.bench.soak_request import (
    CHAT,
    COMPLETIONS,
    PATTERNS,
    WORDS,
    Leave,
    MixOptions,
    SoakRequest,
    base_body,
    prompt_text,
    request_of,
)


def make_request(index: int, seed: int, options: MixOptions) -> SoakRequest:
    """Return request ``index`` of the mix."""
    rng = random.Random(f"{seed}/{index}")
    makers = [*_WEIGHTS]
    (maker,) = rng.choices(makers, [_WEIGHTS[maker] for maker in makers])
    return maker(index, rng, options)


def kinds() -> set[str]:
    """Return the names of all kinds."""
    return {kind for kinds in _KINDS.values() for kind in kinds}


def _plain(index: int, rng: random.Random, _: MixOptions) -> SoakRequest:
    return request_of(index, "plain", *base_body(rng))


def _several(index: int, rng: random.Random, _: MixOptions) -> SoakRequest:
    path, body = base_body(rng)
    body["n"] = rng.randint(2, 4)
    if path == COMPLETIONS and rng.random() < 0.5:
        body["prompt"] = [prompt_text(rng), prompt_text(rng)]
    return request_of(index, "n", path, body)


def _stops(index: int, rng: random.Random, _: MixOptions) -> SoakRequest:
    path, body = base_body(rng)
    stops = rng.sample(["e", "\n", "th", " a", "is", ".", "ing", "o "], rng.randint(1, 4))
    return request_of(index, "stop", path, body | {"stop": stops, "max_tokens": 32})


def _logprobs(index: int, rng: random.Random, _: MixOptions) -> SoakRequest:
    path, body = base_body(rng)
    top = rng.randint(0, 5)
    if path == CHAT:
        return request_of(index, "logprobs", path, body | {"logprobs": True, "top_logprobs": top})
    return request_of(index, "logprobs", path, body | {"logprobs": top, "echo": rng.random() < 0.3})


def _penalties(index: int, rng: random.Random, _: MixOptions) -> SoakRequest:
    path, body = base_body(rng)
    names = ("presence_penalty", "frequency_penalty")
    body |= {name: round(rng.uniform(-1, 2), 2) for name in names}
    body |= {"repetition_penalty": round(rng.uniform(0.8, 1.5), 2), "logit_bias": {"40": -100}}
    body |= rng.choice([{}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}])
    return request_of(index, "penalties", path, body)


def _form(index: int, rng: random.Random, _: MixOptions) -> SoakRequest:
    """Make a request whose answer has a form; there are more schemas than the server may keep."""
    path, body = base_body(rng)
    body |= {"max_tokens": 256}
    body.pop("ignore_eos", None)
    if rng.random() < 0.4:
        pattern = rng.choice(PATTERNS)
        form = {"structured_outputs": {"regex": pattern}}
        return request_of(index, "regex", path, body | form, pattern=pattern)
    schema = _object_schema(
        {"colour": _enum_of_words(rng), "count": {"type": "integer", "enum": _some_numbers(rng)}}
    )
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return request_of(index, "schema", path, body | {"response_format": form}, schema=schema)


def _tools(index: int, rng: random.Random, _: MixOptions) -> SoakRequest:
    path, body = CHAT, base_body(rng)[1]
    body.pop("prompt", None)
    body.pop("ignore_eos", None)
    schemas = {name: _object_schema({"x": _enum_of_words(rng)}) for name in ("look", "wait")}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in schemas.items()
    ]
    named = {"type": "function", "function": {"name": rng.choice([*schemas])}}
    choice = rng.choice(["auto", "required", named])
    body |= {
        "messages": [{"role": "user", "content": prompt_text(rng, 4)}],
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 16 if choice == "auto" else 340,
    }
    return request_of(index, "tools", path, body, tools={} if choice == "auto" else schemas)


def _slow(index: int, rng: random.Random, _: MixOptions) -> SoakRequest:
    path, body = base_body(rng)
    body |= {"stream": True, "max_tokens": 64, "ignore_eos": True}
    return request_of(index, "slow reader", path, body, manner="read slowly")


def _leaves(index: int, rng: random.Random, _: MixOptions) -> SoakRequest:
    path, body = base_body(rng)
    body |= {"max_tokens": 200, "ignore_eos": True, "n": rng.randint(1, 2)}
    kind = rng.choice(_KINDS[_leaves])
    body["stream"] = kind != "leaves a whole answer"
    if not body["stream"]:
        body.pop("stream_options", None)
    leave = {
        "leaves at once": Leave(),  # as a rule it is queued
        "leaves before the first token": Leave(wait_s=rng.uniform(0, 0.05)),
        "leaves mid-stream": Leave(num_pieces=rng.randint(1, 20)),
        "leaves a whole answer": Leave(wait_s=rng.uniform(0, 0.3)),
    }[kind]
    return request_of(index, kind, path, body, manner="hang up", leave=leave)


def _object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def _enum_of_words(rng: random.Random) -> dict[str, Any]:
    return {"enum": rng.sample(WORDS, 3)}


def _some_numbers(rng: random.Random) -> list[int]:
    return sorted(rng.sample(range(100), 3))


_Maker = Callable[[int, random.Random, MixOptions], SoakRequest]

_WEIGHTS: dict[_Maker, int] = {
    _plain: 38,
    _several: 8,
    _stops: 8,
    _logprobs: 7,
    _penalties: 7,
    _form: 8,
    _tools: 5,
    _slow: 3,
    _leaves: 10,
    misuse: 8,
}
_KINDS: dict[_Maker, tuple[str, ...]] = {
    _plain: ("plain",),
    _several: ("n",),
    _stops: ("stop",),
    _logprobs: ("logprobs",),
    _penalties: ("penalties",),
    _form: ("regex", "schema"),
    _tools: ("tools",),
    _slow: ("slow reader",),
    _leaves: (
        "leaves at once",
        "leaves before the first token",
        "leaves mid-stream",
        "leaves a whole answer",
    ),
    misuse: MISUSES,
}
