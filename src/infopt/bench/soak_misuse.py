"""Requests that the server must refuse: broken bodies, wrong lengths, wrong fields."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from infopt.bench.soak_request import (
    COMPLETIONS,
    MixOptions,
    SoakRequest,
    base_body,
    request_of,
)


def misuse(index: int, rng: random.Random, options: MixOptions) -> SoakRequest:
    """Return a request of one of the kinds in `MISUSES`."""
    path, body = base_body(rng)
    kind = rng.choice(MISUSES)
    if kind == "not JSON":
        payload = rng.choice([b"", b"{", b"[1, 2", b'{"prompt": "a" "b"}', b"\xff\xfe", b"{]}"])
        return SoakRequest(index, kind, path, payload, statuses=(400,))
    if kind == "body too long":
        payload = b'{"prompt": "' + b"a" * options.max_body_bytes + b'"}'
        return SoakRequest(index, kind, path, payload, statuses=(413,))
    if kind in _WRONG_LENGTHS:
        return _of_wrong_length(index, kind, path, json.dumps(body).encode())
    if kind == "unknown model":
        return request_of(index, kind, path, body | {"model": "absent"}, statuses=(404,))
    if kind == "prompt too long":
        prompt = [7] * (options.max_model_len + 1)
        return request_of(
            index, kind, COMPLETIONS, {"prompt": prompt, "max_tokens": 1}, statuses=(400,)
        )
    wrong = rng.choice(_WRONG_FIELDS)
    return request_of(index, kind, path, body | wrong, statuses=(400,))


def _of_wrong_length(index: int, kind: str, path: str, payload: bytes) -> SoakRequest:
    return SoakRequest(
        index,
        kind,
        path,
        payload,
        statuses=(400,),
        # The rest never comes: there is no answer to wait for.
        manner="hang up" if kind == "length too large" else "read",
        headers={"Content-Length": _WRONG_LENGTHS[kind](len(payload)), "Connection": "close"},
        has_error_body=kind != "length no number",  # the HTTP parser refuses it, in plain text
    )


_WRONG_LENGTHS: dict[str, Callable[[int], str]] = {
    "length too small": lambda length: str(length - 3),
    "length too large": lambda length: str(length + 100),
    "length no number": lambda length: f"{length}x",
}
_WRONG_FIELDS: tuple[dict[str, Any], ...] = (
    {"max_tokens": "8"},
    {"temperature": -1},
    {"n": 0},
    {"top_p": 2},
    {"stop": 5},
    {"stream": "yes"},
    {"max_tokenz": 1},
    {"max_tokens": 10**6},
    {"logit_bias": {"999999999": 1}},
    {"response_format": {"type": "json_schema"}},
    {"structured_outputs": {"regex": "("}},
    {"structured_outputs": {"json": {"type": "object", "unknownKeyword": 1}}},
)

MISUSES = (
    *("not JSON", "body too long", *_WRONG_LENGTHS, "unknown model", "prompt too long"),
    "wrong field",
)
