"""`HarnessModel`: a model as the harness sees it. Importing this module imports the harness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.model import TemplateLM

from infopt.errors import ConfigError
from infopt.evals.model import EvalModel, max_tokens_of
from infopt.sampling_params import SamplingParams

MAX_GEN_TOKENS = 256
"""Of a completion where the task gives no limit, as in the harness's own adapters."""

_GENERATION_KEYS = (
    "until", "max_gen_toks", "max_tokens", "do_sample", "temperature", "top_p", "top_k", "seed",
)  # fmt: skip

Pair = tuple[tuple[str, str], list[int], list[int]]


class HarnessModel(TemplateLM):
    """Answers the harness's three kinds of request.

    Args:
        llm: The model.
        use_tqdm: Show progress.
    """

    def __init__(self, llm: EvalModel, *, use_tqdm: bool = True) -> None:
        """Keep the model."""
        super().__init__()
        self._llm, self._use_tqdm = llm, use_tqdm

    @property
    def eot_token_id(self) -> int:
        """Token that ends a text; it also stands before texts without a context."""
        tokenizer = self._llm.tokenizer
        first = tokenizer.bos_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        return 0 if first is None else int(first)

    @property
    def prefix_token_id(self) -> int:
        """Token before a text without a context: the tokenizer's own first one, if it has one."""
        first = self._llm.tokenizer.bos_token_id
        return self.eot_token_id if first is None else int(first)

    @property
    def max_length(self) -> int:
        """Most tokens of a request."""
        return max_tokens_of(self._llm)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Return the tokens of a text."""
        del kwargs
        return self._llm.tokenizer.encode(string, add_special_tokens is not False)

    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether it is the greedy one.

        A text that is too long loses the beginning of its context, as in the harness's adapters.
        """
        del kwargs
        texts = [self._cut([*context, *continuation]) for _, context, continuation in requests]
        starts = [
            max(len(text) - len(continuation), 1)  # the first has no probability
            for text, (_, _, continuation) in zip(texts, requests, strict=True)
        ]
        scores = self._llm.score(list(texts), start=starts, use_tqdm=self._use_tqdm)
        found = []
        for score, start in zip(scores, starts, strict=True):
            values = [float(value or 0.0) for value in score.logprobs[start:]]
            found.append((math.fsum(values), all(score.greedy_matches[start:])))
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-probability of whole texts.

        A text longer than the model's limit is cut into windows that share no scored token; the
        first token of each window is read as context.
        """
        del disable_tqdm
        windows, owners = [], []
        for index, request in enumerate(requests):
            (text,) = request.args
            ids = [self.prefix_token_id, *self.tok_encode(text, add_special_tokens=False)]
            for start in range(0, max(len(ids) - 1, 1), self.max_length - 1):
                windows.append(ids[start : start + self.max_length])
                owners.append(index)
        totals = [0.0] * len(requests)
        for owner, score in zip(
            owners, self._llm.score(list(windows), use_tqdm=self._use_tqdm), strict=True
        ):
            totals[owner] += math.fsum(float(v) for v in score.logprobs if v is not None)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Complete prompts up to the task's stop strings, which are not part of the answer."""
        del disable_tqdm
        prompts, params = [], []
        for request in requests:
            prompt, options = request.args
            wanted = sampling_of(options)
            prompts.append(self._cut(self.tok_encode(prompt), room=wanted.max_tokens or 1))
            params.append(wanted)
        outputs = self._llm.generate(list(prompts), params, use_tqdm=self._use_tqdm)
        return [output.outputs[0].text for output in outputs]

    def _cut(self, ids: list[int], room: int = 0) -> list[int]:
        return ids[-max(self.max_length - room, 1) :]


def sampling_of(options: Mapping[str, Any]) -> SamplingParams:
    """Return a task's generation options as sampling parameters.

    Raises:
        ConfigError: An option that would be ignored otherwise.
    """
    unknown = [name for name in options if name not in _GENERATION_KEYS]
    if unknown:
        raise ConfigError(
            f"The task asks for the generation options {unknown}, which are not supported.",
            field="generation_kwargs",
            value=unknown,
            remedy=f"Supported: {', '.join(_GENERATION_KEYS)}.",
        )
    until = options.get("until") or []
    is_sampled = options.get("do_sample", bool(options.get("temperature")))
    most = options.get("max_gen_toks", options.get("max_tokens", MAX_GEN_TOKENS))
    chosen = {name: options[name] for name in ("top_p", "top_k", "seed") if name in options}
    return SamplingParams(
        temperature=float(options.get("temperature", 1.0)) if is_sampled else 0.0,
        max_tokens=int(most),
        stop=(until,) if isinstance(until, str) else tuple(until),
        **(chosen if is_sampled else {}),
    )
