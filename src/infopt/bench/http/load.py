"""`HttpLoad`: how requests are put to a server, and their bodies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from infopt.bench.http.target import HttpTarget
from infopt.bench.options import check_count, check_positive
from infopt.bench.workload_types import WorkloadRequest
from infopt.errors import WorkloadError

Endpoint = Literal["completions", "chat"]
PromptForm = Literal["ids", "text"]

_PATHS: Mapping[str, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}


@dataclass(frozen=True, slots=True)
class HttpLoad:
    """How to ask.

    Attributes:
        target: Whom.
        endpoint: ``completions`` (the prompt as it is) or ``chat`` (as a user's message).
        prompt_form: ``ids`` or ``text``; None is ids where the endpoint takes them and they are
            known.
        respect_eos: Let answers end early; by default they are asked to be as long as the workload
            says (``ignore_eos``), so that every run does the same work.
        max_concurrency: Limit of a client with so many connections; later requests wait in it.
        timeout_s: Longest time from sending to the end of the answer.
        extra: Further fields of every request.
    """

    target: HttpTarget
    endpoint: Endpoint = "completions"
    prompt_form: PromptForm | None = None
    respect_eos: bool = False
    max_concurrency: int | None = None
    timeout_s: float = 600.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            WorkloadError: Names the option and its value.
        """
        check_positive("timeout_s", self.timeout_s)
        if self.max_concurrency is not None:
            check_count("max_concurrency", self.max_concurrency)
        if self.endpoint not in _PATHS:
            raise WorkloadError(
                f"endpoint must be completions or chat, got {self.endpoint!r}.",
                field="endpoint",
                value=self.endpoint,
            )
        if self.form == "ids" and (self.endpoint == "chat" or not self.target.knows_token_ids):
            raise WorkloadError(
                f"{self.endpoint} requests cannot hold token ids here.",
                field="prompt_form",
                value=self.prompt_form,
                remedy="Use text, or completions with --tokenizer.",
            )

    @property
    def form(self) -> PromptForm:
        """How prompts are sent."""
        if self.prompt_form is not None:
            return self.prompt_form
        is_possible = self.endpoint == "completions" and self.target.knows_token_ids
        return "ids" if is_possible else "text"

    @property
    def url(self) -> str:
        """Where requests go."""
        return self.target.url + _PATHS[self.endpoint]

    def body(self, request: WorkloadRequest) -> bytes:
        """Return the JSON of a request."""
        values: dict[str, Any] = {
            "model": self.target.model,
            **self._prompt(request),
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if not self.respect_eos:
            values["ignore_eos"] = True
        return json.dumps(values | dict(self.extra), ensure_ascii=False).encode()

    def _prompt(self, request: WorkloadRequest) -> dict[str, Any]:
        if self.form == "ids":
            return {"prompt": request.prompt_token_ids}
        assert self.target.tokenizer is not None, "texts are made by a tokenizer"
        text = self.target.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=True)
        if self.endpoint == "chat":
            return {"messages": [{"role": "user", "content": text}]}
        return {"prompt": text}

    def describe(self) -> dict[str, Any]:
        """Return how requests were put, as plain data."""
        return {
            "url": self.url,
            "model": self.target.model,
            "prompt_form": self.form,
            "tokenizer": self.target.tokenizer_source,
            "ignore_eos": not self.respect_eos,
            "max_concurrency": self.max_concurrency,
            "timeout_s": self.timeout_s,
        }
