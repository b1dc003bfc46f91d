"""From what a caller asks for to the sequences that the engine computes."""

from __future__ import annotations

import random

from infopt.config import EngineConfig
from infopt.engine.constraint import ConstraintFactory
from infopt.engine.detokenizer import Detokenizer
from infopt.engine.drafting import model_drafter
from infopt.engine.eviction_request import EvictionPlanner, default_eviction
from infopt.engine.parts import EngineParts
from infopt.engine.request import Request
from infopt.engine.sampler import derive_seed
from infopt.engine.sequence import Sequence
from infopt.errors import PromptError, SamplingParamsError
from infopt.models.decoder import Decoder
from infopt.outputs import PositionLogprobs, RequestMetrics
from infopt.sampling_params import SamplingParams


class InputProcessor:
    """Checks requests against the limits and makes their sequences; queues nothing.

    Args:
        config: How the engine runs.
        parts: What it runs on.
    """

    def __init__(self, config: EngineConfig, parts: EngineParts) -> None:
        """Start with no request.

        Raises:
            ConfigError: ``kv_eviction`` does not exist, or not for this model.
        """
        self._cache, self._tokenizer, self._checker = parts.cache, parts.tokenizer, parts.checker
        self._shares_prefixes = config.enable_prefix_caching
        self._evictions = EvictionPlanner(
            default_eviction(config),
            parts.cache,
            parts.num_swap_pages,
            is_native=isinstance(parts.runner.model, Decoder),
        )
        # A drafter that computes with a model counts all positions.
        self._may_stream = model_drafter(parts.drafter) is None
        self._seeds = random.Random(config.seed)
        self._next_seq_id = 0

    def make_request(
        self,
        request_id: str,
        prompt: str | list[int],
        params: SamplingParams,
        arrival_s: float,
        constraint: ConstraintFactory | None = None,
    ) -> Request:
        """Return a request whose sequences can be queued.

        Args:
            request_id: Names it.
            prompt: Text, or token ids that are used as they are.
            params: How to sample and when to stop.
            arrival_s: When it was due, on the engine's clock.
            constraint: Makes what limits the tokens of each completion.

        Raises:
            PromptError: Empty prompt, bad ids, or text without a tokenizer.
            PromptTooLongError: The prompt and ``max_tokens`` do not fit ``max_model_len``.
            CapacityError: The prompt can never fit the page pool, or its rows the host memory.
            SamplingParamsError: A token id outside the vocabulary in ``logit_bias`` or stops, or
                a ``kv_eviction`` that does not exist.
        """
        eviction = self._evictions.config_for(params)
        token_ids = self._tokens_of(prompt, params)
        streamed = None
        if eviction is not None and self._may_stream:
            self._checker.check_prompt_ids(token_ids)
            streamed = self._evictions.streamed_rows(eviction, len(token_ids))
        max_tokens = self._checker.check(token_ids, params, streamed)
        states = [
            self._evictions.plan(eviction, len(token_ids), max_tokens) for _ in range(params.n)
        ]
        sequences = self.fork(request_id, token_ids, params, max_tokens, arrival_s)
        for sequence, state in zip(sequences, states, strict=True):
            sequence.eviction = state
            if constraint is not None:
                sequence.constraint = constraint()
            if self._tokenizer is not None and params.detokenize:
                sequence.detokenizer = Detokenizer(self._tokenizer, params)
        return Request.create(prompt if isinstance(prompt, str) else None, sequences)

    def fork(
        self,
        request_id: str,
        token_ids: list[int],
        params: SamplingParams,
        max_tokens: int,
        arrival_s: float,
    ) -> list[Sequence]:
        """Return the sequences of a prompt, one per completion, on pages of their own.

        Args:
            request_id: The request they belong to.
            token_ids: The prompt, checked.
            params: How to sample; without a seed one is drawn.
            max_tokens: Output limit.
            arrival_s: When the request was due.
        """
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(64)
        wants_prompt = params.prompt_logprobs is not None
        unknown: list[PositionLogprobs | None] = [None] * len(token_ids)
        sequences: list[Sequence] = []
        for index in range(params.n):
            sequence = Sequence(
                seq_id=self._next_seq_id,
                request_id=request_id,
                index=index,
                token_ids=list(token_ids),
                num_prompt_tokens=len(token_ids),
                params=params,
                seed=derive_seed(seed, index),
                max_tokens=max_tokens,
                cache=self._cache.new_sequence(),
                metrics=RequestMetrics(arrival_s=arrival_s),
                logprobs=[] if params.logprobs is not None else None,
                prompt_logprobs=unknown if wants_prompt and not index else None,
                waits_for=sequences[0] if index and self._shares_prefixes else None,
            )
            self._next_seq_id += 1
            sequences.append(sequence)
        return sequences

    def _tokens_of(self, prompt: str | list[int], params: SamplingParams) -> list[int]:
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise PromptError(
                    "a text prompt needs a tokenizer, but skip_tokenizer_init is on.",
                    field="prompt",
                    value=prompt[:40],
                    remedy="Pass token ids.",
                )
            return self._tokenizer.encode(prompt)
        if params.stop and self._tokenizer is None:
            raise PromptError(
                "stop strings need a tokenizer, but skip_tokenizer_init is on.",
                field="stop",
                value=params.stop,
                remedy="Use stop_token_ids.",
            )
        return prompt


def check_params(params: SamplingParams, constraint: ConstraintFactory | None) -> None:
    """Check what callers from outside this package may get wrong about parameters.

    Raises:
        SamplingParamsError: It is no `SamplingParams`, or its form was not made a constraint.
    """
    if not isinstance(params, SamplingParams):
        raise SamplingParamsError(
            f"sampling_params must be a SamplingParams, got {type(params).__name__}.",
            field="sampling_params",
            value=params,
            remedy="SamplingParams.from_dict reads plain data.",
        )
    if params.structured_outputs is not None and constraint is None:
        raise SamplingParamsError(
            "the engine takes a constraint, not structured_outputs.",
            field="structured_outputs",
            value=params.structured_outputs,
            remedy="LLM makes one of it, as infopt.structured.GrammarCompiler does.",
        )
