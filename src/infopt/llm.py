"""`LLM`: a model for scripts and notebooks.

>>> llm = LLM("smollm2-135m-instruct-q4_1", max_num_seqs=8)
>>> llm.generate(["Once upon a time"], SamplingParams(temperature=0))[0].outputs[0].text
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from infopt.config import EngineConfig
from infopt.engine.clock import Clock
from infopt.engine.constraint import ConstraintFactory
from infopt.engine.engine import Engine
from infopt.engine.inputs import Prompt, as_list, per_prompt, scoring_params
from infopt.engine.loader import build_engine
from infopt.engine.progress import bar, counter
from infopt.errors import ConfigError, PromptError
from infopt.models.config import ModelConfig
from infopt.models.fallback.config import TransformersConfig
from infopt.models.tokenizer import Tokenizer
from infopt.moe.statistics import describe_experts
from infopt.outputs import RequestOutput, ScoreOutput
from infopt.sampling_params import SamplingParams
from infopt.speculative import describe_speculation
from infopt.structured import GrammarCompiler, StructuredSpec, with_response_format

Message = Mapping[str, Any]


class LLM:
    """An engine with the loop around it.

    Args:
        model: Registry slug, checkpoint folder or GGUF file.
        config: Complete configuration, instead of ``model`` and options.
        clock: Source of time, for tests.
        options: Any option of :class:`~infopt.config.EngineConfig`.

    Raises:
        InfoptError: For anything that cannot be had here.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        config: EngineConfig | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        """Load the model."""
        if (model is None) == (config is None):
            raise ConfigError(
                "give either a model or a config.",
                field="model",
                value=model,
                remedy='LLM("smollm2-135m-instruct-q4_1") or LLM(config=EngineConfig(...)).',
            )
        if config is not None:
            if not isinstance(config, EngineConfig):
                raise ConfigError(
                    f"config must be an EngineConfig, got {type(config).__name__}.",
                    field="config",
                    value=config,
                    remedy="EngineConfig.from_dict reads plain data.",
                )
            self.config = config.replace(**options)
        else:
            self.config = EngineConfig.from_dict({"model": model, **options})
        self.engine: Engine = build_engine(
            self.config, clock=clock, progress=lambda layers: bar(layers, "loading", "layer")
        )
        self._ids = itertools.count()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            ConfigError: If ``skip_tokenizer_init`` is on.
        """
        if self.engine.tokenizer is None:
            raise ConfigError(
                "this LLM has no tokenizer: skip_tokenizer_init is on.",
                field="skip_tokenizer_init",
                value=True,
                remedy="Work on token ids, or leave the option off.",
            )
        return self.engine.tokenizer

    @property
    def model_config(self) -> ModelConfig | TransformersConfig:
        """Architecture of the model, or what is known of one that transformers runs."""
        return self.engine.runner.model.config

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts.

        Args:
            prompts: Text, token ids, or a list of either.
            sampling_params: One for all or one per prompt; ``structured_outputs`` of them says
                what the output must look like.
            use_tqdm: Show progress.

        Returns:
            One output per prompt, in order.

        Raises:
            InfoptError: If any prompt or parameter is bad; nothing has run then.
        """
        prompts = as_list(prompts)
        params = per_prompt(sampling_params, len(prompts))
        with self._requests(prompts, params) as request_ids:
            return self._run(request_ids, "generating", use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        response_format: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        use_tqdm: bool = True,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer conversations, through the model's own chat template.

        Args:
            messages: One conversation or a list of them.
            sampling_params: One for all or one per conversation.
            tools: Tool descriptions for the template.
            response_format: Form of every answer, as OpenAI writes it: ``{"type": "json_object"}``
                or ``{"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}``.
            add_generation_prompt: Open the assistant's turn.
            use_tqdm: Show progress.
            template_options: Passed to the template.

        Raises:
            InfoptError: If any conversation, parameter or form is bad; nothing has run then.
        """
        if not isinstance(messages, list | tuple) or not messages:
            raise PromptError(
                f"messages must be a list of at least one message, got {messages!r}.",
                field="messages",
                value=messages,
                remedy='[{"role": "user", "content": "..."}]',
            )
        conversations: Any = [messages] if isinstance(messages[0], Mapping) else messages
        prompts: list[Prompt] = [
            self.tokenizer.apply_chat_template(
                list(conversation),
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
                **template_options,
            )
            for conversation in conversations
        ]
        if response_format is not None:
            sampling_params = [
                with_response_format(params, response_format)
                for params in per_prompt(sampling_params, len(prompts))
            ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def score(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        start: int | Sequence[int] = 0,
        use_tqdm: bool = True,
    ) -> list[ScoreOutput]:
        """Return the log-probability of each token given those before it.

        Args:
            texts: Text, token ids, or a list of either.
            start: First position that is scored, one for all texts or one each. Those before it are
                None; they cost no output head, and texts that begin alike may share their pages.
            use_tqdm: Show progress.

        Raises:
            InfoptError: If any text or start is bad; nothing has run then.
        """
        texts = as_list(texts)
        params = per_prompt(scoring_params(start), len(texts))
        with self._requests(texts, params) as request_ids:
            return [_score_of(output) for output in self._run(request_ids, "scoring", use_tqdm)]

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Return the raw logits at every position.

        Args:
            token_ids: A sequence of at most ``max_model_len`` tokens.

        Returns:
            float32 ``(num_tokens, vocab_size)``; row ``i`` predicts token ``i + 1``.
        """
        self.engine.checker.check(token_ids, SamplingParams(max_tokens=0))
        return self.engine.all_logits(token_ids)

    def stats(self) -> dict[str, Any]:
        """Return counters since the start, and what was derived from the config at load time."""
        engine = self.engine
        stats, pool, facts = engine.stats, engine.cache.pool, engine.describe()
        old = engine.cache.quantized
        memory = ("weights_bytes", "kv_bytes_per_token", "kv_pool_bytes", "page_bytes")
        return {
            "requests": stats.num_requests,
            "finished": dict(stats.num_finished),
            "running": len(engine.scheduler.running),
            "waiting": len(engine.scheduler.waiting),
            "prompt_tokens": stats.num_prompt_tokens,
            "cached_tokens": stats.num_cached_tokens,
            "generated_tokens": stats.num_generated_tokens,
            "prefix_hit_rate": stats.prefix_hit_rate,
            "steps": stats.num_steps,
            "preemptions": stats.num_preemptions,
            "pages": {**pool.describe(), "quantized": old and old.pool.describe()},
            "speculative": describe_speculation(
                self.config.speculative, engine.draft_stats, engine.scheduler.control
            ),
            "experts": describe_experts(engine.expert_counts),
            "kv_eviction": {
                "evictions": stats.num_evictions,
                "freed_bytes": stats.kv_freed_bytes,
                "steps_that_kept_queries": stats.num_query_steps,
            },
            "memory": {key: facts[key] for key in memory},
            **{key: value for key, value in facts.items() if key not in memory},
        }

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self.engine.reset_prefix_cache()

    def close(self) -> None:
        """End all requests and let go of model and pages; a second call does nothing."""
        if hasattr(self, "engine"):
            self.engine.abort_all()
            del self.engine

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def _requests(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams]
    ) -> Iterator[list[str]]:
        """Add requests; take back all of them if one is refused or the run is interrupted."""
        request_ids: list[str] = []
        try:
            for prompt, param in zip(prompts, params, strict=True):
                request_id = f"llm-{next(self._ids)}"
                self.engine.add_request(
                    request_id, prompt, param, constraint=self._constraint_of(param)
                )
                request_ids.append(request_id)
            yield request_ids
        except BaseException:
            for request_id in request_ids:
                self.engine.discard(request_id)
            raise

    @functools.cached_property
    def _compiler(self) -> GrammarCompiler:
        return GrammarCompiler(self.tokenizer, self.model_config.eos_token_ids)

    def _constraint_of(self, params: SamplingParams) -> ConstraintFactory | None:
        form = params.structured_outputs if isinstance(params, SamplingParams) else None
        return None if form is None else self._compiler.compile(StructuredSpec.of(form))

    def _run(self, request_ids: list[str], verb: str, use_tqdm: bool) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        pending = set(request_ids)  # the engine may serve others as well
        with counter(len(request_ids), verb, use_tqdm) as advance:
            while pending:
                for output in self.engine.step():
                    if output.finished and output.request_id in pending:
                        outputs[output.request_id] = output
                        pending.remove(output.request_id)
                        advance(1)
        return [outputs[request_id] for request_id in request_ids]


def _score_of(output: RequestOutput) -> ScoreOutput:
    entries = output.prompt_logprobs
    assert entries is not None
    token_ids = output.prompt_token_ids
    given = [e[t] if e is not None else None for t, e in zip(token_ids, entries, strict=True)]
    return ScoreOutput(
        token_ids=token_ids,
        logprobs=[g.logprob if g is not None else None for g in given],
        greedy_matches=[g.rank == 1 if g is not None else None for g in given],
    )
