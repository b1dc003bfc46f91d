"""``/v1/completions``."""

from __future__ import annotations

from typing import Any

from infopt.errors import SamplingParamsError
from infopt.sampling_params import SamplingParams
from infopt.serve.deltas import Delta
from infopt.serve.generation import Generation, Prepared
from infopt.serve.logprobs import CompletionLogprobs, join_logprobs
from infopt.serve.protocol import CompletionRequest
from infopt.serve.service import Service


class Completion(Generation):
    """A request to go on with one or more texts.

    Args:
        service: Models and loop.
        body: The request.
    """

    kind = "text_completion"
    chunk_kind = "text_completion"
    id_prefix = "cmpl"

    def __init__(self, service: Service, body: CompletionRequest) -> None:
        """Refuse what is not supported."""
        super().__init__(service, body)
        self.body = body
        self._num_answers = body.n or 1
        self._prompts: list[tuple[str, list[int]]] = []
        self._logprobs: dict[int, CompletionLogprobs] = {}
        if body.best_of is not None and body.best_of != self._num_answers:
            raise SamplingParamsError(
                f"best_of={body.best_of} is not supported.",
                field="best_of",
                value=body.best_of,
                remedy="Leave it out; n gives n answers.",
            )
        if body.suffix:
            raise SamplingParamsError(
                f"suffix={body.suffix!r} is not supported.", field="suffix", value=body.suffix
            )

    def prepare(self) -> Prepared:
        """Encode the prompts; token ids are used as they are."""
        tokenizer, checker = self.model.tokenizer, self.model.engine.checker
        params: list[SamplingParams] = []
        for prompt in self.body.prompts():
            token_ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            params.append(self.body.params(room=checker.max_model_len - len(token_ids)))
            checker.check(token_ids, params[-1])
            text = prompt if isinstance(prompt, str) else self._text_of(token_ids)
            self._prompts.append((text, token_ids))
        spec = self.body.structured()
        constraint = None if spec is None else self.model.compiler.compile(spec)
        return Prepared([token_ids for _, token_ids in self._prompts], params, constraint)

    def choice(self, delta: Delta) -> dict[str, Any]:
        """Return a whole answer."""
        return self._choice(delta, is_first=True)

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return a piece of an answer, the echoed prompt in front of the first."""
        index = self._index(delta)
        is_first = index not in self._logprobs
        choice = self._choice(delta, is_first)
        has_news = choice["text"] or choice["logprobs"] or choice["finish_reason"]
        return [choice] if has_news else []

    def _choice(self, delta: Delta, is_first: bool) -> dict[str, Any]:
        echoes = is_first and bool(self.body.echo)
        prompt_text = self._prompts[delta.prompt_index][0] if echoes else ""
        return {
            "index": self._index(delta),
            "text": prompt_text + delta.text,
            "logprobs": self._describe(delta, echoes),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _describe(self, delta: Delta, echoes: bool) -> dict[str, Any] | None:
        writer = self._writer(self._index(delta))
        if self.body.logprobs is None:
            return None
        parts = [writer.write_prompt(*self._scored_prompt(delta))] if echoes else []
        assert delta.logprobs is not None, "log-probabilities were asked for"
        return join_logprobs([*parts, writer.write(delta.token_ids, delta.logprobs)])

    def _writer(self, index: int) -> CompletionLogprobs:
        if index not in self._logprobs:
            skips_special = self.body.skip_special_tokens is not False
            self._logprobs[index] = CompletionLogprobs(self.model.tokenizer, skips_special)
        return self._logprobs[index]

    def _scored_prompt(self, delta: Delta) -> tuple[str, list[int], list[Any]]:
        assert delta.prompt_logprobs is not None, "the prompt was to be scored"
        return *self._prompts[delta.prompt_index], delta.prompt_logprobs

    def _index(self, delta: Delta) -> int:
        return delta.prompt_index * self._num_answers + delta.index

    def _text_of(self, token_ids: list[int]) -> str:
        """Return the text of a prompt given as ids, special tokens literally."""
        tokenizer = self.model.tokenizer
        raw = b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids)
        return raw.decode("utf-8", errors="replace")
