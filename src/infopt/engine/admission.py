"""Checks a request against the limits of an engine before anything is queued."""

from __future__ import annotations

from dataclasses import dataclass

from infopt.errors import CapacityError, PromptError, PromptTooLongError, SamplingParamsError
from infopt.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class RequestChecker:
    """The limits.

    Attributes:
        num_token_ids: Ids at or above this do not exist (padding of the embedding included).
        max_model_len: Most tokens of prompt and output.
        pool_tokens: Most tokens of one sequence that the page pool can hold.
        eos_token_ids: Masked before ``min_tokens``, like stop tokens.
    """

    num_token_ids: int
    max_model_len: int
    pool_tokens: int
    eos_token_ids: tuple[int, ...] = ()

    def check(
        self, token_ids: list[int], params: SamplingParams, streamed_rows: int | None = None
    ) -> int:
        """Check prompt and parameters.

        Args:
            token_ids: The prompt.
            params: What is asked for.
            streamed_rows: Most rows of an output whose positions count within the cache: these are
                limited, the length of the output is not. None: positions are true.

        Returns:
            The output limit: ``max_tokens``, or what fits where none is given or the pool is
            smaller than ``max_model_len``.

        Raises:
            PromptError: Empty prompt or ids outside the vocabulary.
            PromptTooLongError: Prompt (and asked-for output, or rows) beyond ``max_model_len``.
            CapacityError: Prompt (or rows) beyond the pool.
            SamplingParamsError: Ids outside the vocabulary in ``logit_bias`` or stops, no token
                left to sample before ``min_tokens``, or scoring from behind the prompt.
        """
        self.check_prompt_ids(token_ids)
        self._check_named_ids(params)
        _check_scored(token_ids, params)
        if streamed_rows is not None:
            self._check_rows(streamed_rows)
            if params.max_tokens is not None:
                return params.max_tokens
        room = self._room(len(token_ids), params)
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        if params.min_tokens > limit:
            raise PromptTooLongError(
                f"min_tokens={params.min_tokens} does not fit: a prompt of {len(token_ids)} tokens "
                f"leaves room for {room}.",
                field="min_tokens",
                value=params.min_tokens,
            )
        return limit

    def check_prompt_ids(self, token_ids: list[int]) -> None:
        """Check the prompt alone.

        Raises:
            PromptError: If it is empty, or no list of ids of the vocabulary.
        """
        if not isinstance(token_ids, list | tuple):
            raise PromptError(
                f"a prompt is text or a list of token ids, got {type(token_ids).__name__}.",
                field="prompt",
                value=token_ids,
                remedy="Arrays and tensors have tolist().",
            )
        if not token_ids:
            raise PromptError("the prompt is empty.", field="prompt", remedy="Give a token or two.")
        for token_id in token_ids:
            if type(token_id) is not int:  # no bool either
                raise PromptError(
                    f"token ids must be int, got {token_id!r}.", field="prompt", value=token_id
                )
            if not 0 <= token_id < self.num_token_ids:
                raise PromptError(
                    f"token id {token_id} is outside 0 .. {self.num_token_ids - 1}.",
                    field="prompt",
                    value=token_id,
                )

    def _check_named_ids(self, params: SamplingParams) -> None:
        named = {"logit_bias": params.logit_bias, "stop_token_ids": params.stop_token_ids}
        for field, ids in named.items():
            for token_id in ids:
                if token_id >= self.num_token_ids:
                    raise SamplingParamsError(
                        f"{field}: token id {token_id} is outside 0 .. {self.num_token_ids - 1}.",
                        field=field,
                        value=token_id,
                    )
        masked = {*params.stop_token_ids, *self.eos_token_ids}
        if params.min_tokens and len(masked) >= self.num_token_ids:
            raise SamplingParamsError(
                f"min_tokens={params.min_tokens} masks all {self.num_token_ids} tokens: each of "
                "them is a stop token.",
                field="min_tokens",
                value=params.min_tokens,
                remedy="Name fewer stop_token_ids.",
            )

    def _check_rows(self, num_rows: int) -> None:
        """Check the most rows that streaming holds, the prompt among them."""
        for limit, name, error in (
            (self.max_model_len, "max_model_len is", PromptTooLongError),
            (self.pool_tokens, "the KV pool holds", CapacityError),
        ):
            if num_rows > limit:
                raise error(
                    f"kv_eviction: the prompt, and then budget and interval, take up to {num_rows} "
                    f"rows, {name} {limit}.",
                    field="kv_eviction.budget",
                    value=num_rows,
                    remedy="Lower the budget, or shorten the prompt.",
                )

    def _room(self, num_prompt: int, params: SamplingParams) -> int:
        """Return how many tokens can follow the prompt.

        The newest token needs no keys and values, but the room is counted as if it did: the limit
        is on prompt + output.
        """
        asked = params.max_tokens
        least = 1 if asked is None else min(asked, 1)
        if num_prompt + least > self.max_model_len:
            raise PromptTooLongError(
                f"the prompt has {num_prompt} tokens, max_model_len is {self.max_model_len}"
                + (", which leaves no room for an answer." if least else "."),
                field="prompt",
                value=num_prompt,
                remedy="Shorten the prompt or raise max_model_len.",
            )
        if asked is not None and num_prompt + asked > self.max_model_len:
            raise PromptTooLongError(
                f"the prompt has {num_prompt} tokens and max_tokens is {asked}: together more than "
                f"max_model_len, which is {self.max_model_len}.",
                field="max_tokens",
                value=asked,
                remedy=f"Ask for at most {self.max_model_len - num_prompt} tokens.",
            )
        if num_prompt + least > self.pool_tokens:
            raise CapacityError(
                f"the prompt has {num_prompt} tokens, the KV pool holds {self.pool_tokens}.",
                field="prompt",
                value=num_prompt,
                remedy="Shorten the prompt or raise kv_cache_memory_gib (or num_kv_pages).",
            )
        return min(self.max_model_len, self.pool_tokens) - num_prompt


def _check_scored(token_ids: list[int], params: SamplingParams) -> None:
    if params.prompt_logprobs_start > len(token_ids):
        raise SamplingParamsError(
            f"prompt_logprobs_start={params.prompt_logprobs_start} is behind a prompt of "
            f"{len(token_ids)} tokens.",
            field="prompt_logprobs_start",
            value=params.prompt_logprobs_start,
            remedy="Positions count tokens, not characters.",
        )
