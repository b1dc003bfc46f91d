"""What an evaluation asks of a model: the scoring half of :class:`infopt.llm.LLM`."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from infopt.errors import PromptTooLongError
from infopt.outputs import RequestOutput, ScoreOutput
from infopt.sampling_params import SamplingParams


class EvalModel(Protocol):
    """A language model as the evaluations see it; ``LLM`` is one, tests bring small fakes."""

    @property
    def tokenizer(self) -> Any:
        """Tokenizer with ``encode``, ``decode``, ``token_bytes`` and ``bos_token_id``."""
        ...

    @property
    def config(self) -> Any:
        """Its ``EngineConfig``."""
        ...

    @property
    def model_config(self) -> Any:
        """Its ``ModelConfig``."""
        ...

    def score(
        self,
        texts: list[str | list[int]],
        *,
        start: int | list[int] = 0,
        use_tqdm: bool = True,
    ) -> list[ScoreOutput]:
        """Return the log-probabilities of every text from its start on, None before it."""
        ...

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Return float32 logits (num_tokens, vocab_size); row i predicts token i + 1."""
        ...

    def generate(
        self,
        prompts: str | list[int] | list[str | list[int]],
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts."""
        ...


def max_tokens_of(llm: EvalModel) -> int:
    """Return the most tokens (prompt and output together) a request to this model may have."""
    limit = llm.model_config.max_position_embeddings
    return limit if llm.config.max_model_len is None else min(limit, llm.config.max_model_len)


def check_fits(llm: EvalModel, num_tokens: int, field: str) -> None:
    """Refuse an evaluation whose requests could not run.

    Args:
        llm: The model.
        num_tokens: Prompt and output tokens of the longest request.
        field: Which option made it that long.

    Raises:
        PromptTooLongError: If it is longer than the model's limit.
    """
    limit = max_tokens_of(llm)
    if num_tokens > limit:
        raise PromptTooLongError(
            f"{field} needs {num_tokens} tokens, above max_model_len={limit}.",
            field=field,
            value=num_tokens,
            remedy=f"Lower {field}, or raise max_model_len if the model allows it.",
        )
