"""`LLM`: a model for scripts and notebooks.

>>> llm = LLM("smollm2-135m-instruct-q4_1", max_num_seqs=8)
>>> llm.generate(["Once upon a time"], SamplingParams(temperature=0))[0].outputs[0].text
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from infopt.config import EngineConfig
from infopt.engine.clock import Clock
from infopt.engine.engine import Engine
from infopt.engine.loader import build_engine
from infopt.errors import ConfigError, PromptError, SamplingParamsError
from infopt.models.config import ModelConfig
from infopt.models.tokenizer import Tokenizer
from infopt.outputs import RequestOutput, ScoreOutput
from infopt.sampling_params import SamplingParams

Prompt = str | list[int]
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
            self.config, clock=clock, progress=lambda layers: _bar(layers, "loading", "layer")
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
    def model_config(self) -> ModelConfig:
        """Architecture of the model."""
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
            sampling_params: One for all or one per prompt.
            use_tqdm: Show progress.

        Returns:
            One output per prompt, in order.

        Raises:
            InfoptError: If any prompt or parameter is bad; nothing has run then.
        """
        prompts = _as_list(prompts)
        params = _per_prompt(sampling_params, len(prompts))
        with self._requests(prompts, params) as request_ids:
            return self._run(request_ids, "generating", use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        use_tqdm: bool = True,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer conversations, through the model's own chat template.

        Args:
            messages: One conversation or a list of them.
            sampling_params: One for all or one per conversation.
            tools: Tool descriptions for the template.
            add_generation_prompt: Open the assistant's turn.
            use_tqdm: Show progress.
            template_options: Passed to the template.
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
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def score(
        self, texts: Prompt | Sequence[Prompt], *, use_tqdm: bool = True
    ) -> list[ScoreOutput]:
        """Return the log-probability of each token given those before it.

        Args:
            texts: Text, token ids, or a list of either.
            use_tqdm: Show progress.
        """
        texts = _as_list(texts)
        params = SamplingParams(max_tokens=0, prompt_logprobs=0, detokenize=False)
        with self._requests(texts, [params] * len(texts)) as request_ids:
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
            "pages": {
                "total": pool.num_pages,
                "used": pool.num_used,
                "cached": pool.num_cached,
                "free": pool.num_free,
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
                self.engine.add_request(request_id, prompt, param)
                request_ids.append(request_id)
            yield request_ids
        except BaseException:
            for request_id in request_ids:
                self.engine.discard(request_id)
            raise

    def _run(self, request_ids: list[str], verb: str, use_tqdm: bool) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        pending = set(request_ids)  # the engine may serve others as well
        with _counter(len(request_ids), verb, use_tqdm) as advance:
            while pending:
                for output in self.engine.step():
                    if output.finished and output.request_id in pending:
                        outputs[output.request_id] = output
                        pending.remove(output.request_id)
                        advance(1)
        return [outputs[request_id] for request_id in request_ids]


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise PromptError(
            f"prompts must be text, token ids or a list of either, got {prompts!r}.",
            field="prompts",
            value=prompts,
        )
    prompts = list(prompts)  # type: ignore[arg-type]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]


def _per_prompt(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if not isinstance(params, list | tuple):
        raise SamplingParamsError(
            f"sampling_params must be a SamplingParams or a list of them, got {params!r}.",
            field="sampling_params",
            value=params,
            remedy="SamplingParams.from_dict reads plain data.",
        )
    if len(params) != num_prompts:
        raise PromptError(
            f"{num_prompts} prompts, but {len(params)} sampling_params.",
            field="sampling_params",
            value=len(params),
            remedy="Give one for all, or one per prompt.",
        )
    return list(params)


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


def _bar(items: Sequence[int], verb: str, unit: str) -> Any:
    """Show progress over items where tqdm is installed and it takes long enough to matter."""
    tqdm = _tqdm()
    return items if tqdm is None else tqdm(items, desc=verb, unit=unit, delay=1.0, leave=False)


@contextmanager
def _counter(total: int, verb: str, enabled: bool) -> Iterator[Any]:
    tqdm = _tqdm()
    if not enabled or tqdm is None:
        yield lambda _count: None
        return
    with tqdm(total=total, desc=verb, unit="request", delay=1.0, leave=False) as bar:
        yield bar.update


def _tqdm() -> Any:
    """Return the progress bar that suits terminal or notebook; None without tqdm."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without ipywidgets it says so and shows a text bar
            from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm
