"""One request of a soak, and what all of them are made of."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any, Literal

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

Manner = Literal["read", "read slowly", "hang up"]
"""What the client does after it has sent the request."""


@dataclass(frozen=True, slots=True)
class Leave:
    """When a client hangs up: after so many pieces of the answer, or else after so many seconds."""

    num_pieces: int = 0
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SoakRequest:
    """One request and what is right to answer.

    Attributes:
        index: Its number in the soak.
        kind: What it tries.
        path: Route.
        payload: Bytes of the body.
        body: The body as data; empty where it is malformed on purpose.
        statuses: Answers that are right.
        manner: How the client reads.
        leave: When a client that hangs up does so.
        has_error_body: Whether a refusal has the server's own form.
        headers: In place of the usual ones.
        schema: The answer's text is JSON of this schema.
        pattern: The answer's text matches this.
        tools: Schemas of the arguments by function name; the answer must be calls.
    """

    index: int
    kind: str
    path: str
    payload: bytes
    body: dict[str, Any] = field(default_factory=dict)
    statuses: tuple[int, ...] = (200,)
    manner: Manner = "read"
    leave: Leave = Leave()
    has_error_body: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    pattern: str | None = None
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def is_repeatable(self) -> bool:
        """Whether an equal request has an equal answer: greedy, or drawn from a seed."""
        is_answered = self.manner != "hang up" and self.statuses == (200,)
        return is_answered and (self.is_greedy or "seed" in self.body)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely tokens are asked for."""
        return self.body.get("temperature") == 0


MIN_MODEL_LEN = 512
"""Room for the longest constrained answer (every gap filled with white space) and its prompt."""


@dataclass(frozen=True, slots=True)
class MixOptions:
    """What the requests must know of the server.

    Attributes:
        max_model_len: Longest prompt and output in tokens, at least `MIN_MODEL_LEN`.
        max_body_bytes: Longest body that the server takes.
    """

    max_model_len: int = MIN_MODEL_LEN
    max_body_bytes: int = 65536


WORDS = (
    *("red", "blue", "green", "stone", "river", "seven", "nine", "house", "walks", "thinks"),
    *("the", "of", "and", "quick", "under", "Straße", "naïve", "日本", "🙂", "ends", "near", "oak"),
)
PREFIXES = (
    "You are a helpful gardener who answers in one short sentence.",
    "Translate what follows into the language of the reader, word by word.",
)
PATTERNS = (r"[a-f]{3,8}", r"[0-9]{2,4}-[0-9]{2}", r"(yes|no|maybe) [0-9]{1,3}", r"(ab|cd){1,5}!")


def request_of(index: int, kind: str, path: str, body: dict[str, Any], **more: Any) -> SoakRequest:
    """Return a request with a body that is JSON; ``more`` are further fields."""
    payload = json.dumps(body).encode()
    return SoakRequest(index, kind, path, payload, body=body, **more)


def base_body(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a route and a short body for it, greedy, seeded or free, streamed or not."""
    body: dict[str, Any] = {"max_tokens": rng.randint(1, 24)}
    body |= rng.choices([{"temperature": 0}, {"seed": rng.getrandbits(31)}, {}], [6, 2, 2])[0]
    if rng.random() < 0.3:
        body["ignore_eos"] = True
    if rng.random() < 0.5:
        body["stream"] = True
        if rng.random() < 0.7:
            body["stream_options"] = {"include_usage": True}
    if rng.random() < 0.5:
        messages = [{"role": "user", "content": prompt_text(rng)}]
        if rng.random() < 0.3:
            messages.insert(0, {"role": "system", "content": rng.choice(PREFIXES)})
        return CHAT, {"messages": messages} | body
    ids = [rng.randint(5, 250) for _ in range(rng.randint(1, 100))]
    return COMPLETIONS, {"prompt": prompt_text(rng) if rng.random() < 0.7 else ids} | body


def prompt_text(rng: random.Random, max_words: int = 10) -> str:
    """Return a prompt, sometimes with a beginning that others share, sometimes not in ASCII."""
    words = [rng.choice(WORDS) for _ in range(rng.randint(1, max_words))]
    start = rng.choice(PREFIXES) + " " if rng.random() < 0.4 else ""
    return start + " ".join(words)
