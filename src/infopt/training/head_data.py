"""What a draft head learns from: a model's own texts, with its hidden states."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from infopt.bench.degenerate import is_degenerate
from infopt.engine.sequence import Sequence
from infopt.errors import MeasurementError
from infopt.llm import LLM
from infopt.outputs import RequestOutput
from infopt.sampling_params import SamplingParams
from infopt.training.head_prompts import prompts

_TEMPERATURES = (0.0, 0.7, 1.0)
_OUTPUT_TOKENS = 128
_BATCH = 64
"""Prompts between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class HeadData:
    """Texts one after the other.

    Attributes:
        hidden: Normed hidden states ``(num_tokens, hidden_size)``.
        tokens: The token after each, int64 ``(num_tokens,)``.
        ends: Index behind the text that each belongs to, int64 ``(num_tokens,)``.
        num_texts: Texts that were kept.
        num_degenerate: Texts that were left out since they only repeat themselves.
    """

    hidden: torch.Tensor
    tokens: torch.Tensor
    ends: torch.Tensor
    num_texts: int
    num_degenerate: int

    def starts(self, num_steps: int) -> torch.Tensor:
        """Return the indices behind which a text has at least ``num_steps`` more states."""
        index = torch.arange(len(self.tokens))
        return index[index + num_steps < self.ends]

    def split(self, share: float) -> tuple[HeadData, HeadData]:
        """Return all but the last texts, and those, which hold about a share of the tokens."""
        wanted = max(int(len(self.tokens) * (1 - share)), 1)
        border = int(self.ends[wanted - 1])
        if border >= len(self.tokens):  # the last text is long: keep all before it
            border = (
                int(self.ends[self.ends < len(self.tokens)].amax()) if self.num_texts > 1 else 0
            )
        return self._part(0, border), self._part(border, len(self.tokens))

    def _part(self, start: int, end: int) -> HeadData:
        ends = self.ends[start:end] - start
        num_texts = len(ends.unique())
        return HeadData(self.hidden[start:end], self.tokens[start:end], ends, num_texts, 0)


class Recorder:
    """Keeps the hidden states of all rows that tokens are chosen from."""

    def __init__(self) -> None:
        """Start empty."""
        self._states: dict[tuple[str, int], torch.Tensor] = {}

    def observe(self, rows: list[tuple[Sequence, int]], hidden: torch.Tensor) -> None:
        """Copy what a step computed."""
        kept = hidden.cpu().clone()
        for (sequence, position), state in zip(rows, kept, strict=True):
            self._states[sequence.request_id, position] = state

    def take(self, output: RequestOutput, first: int) -> tuple[torch.Tensor, list[int]]:
        """Return, and forget, the states of a text from a position on, and the token after each."""
        tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        states = [self._states.pop((output.request_id, i)) for i in range(len(tokens) - 1)]
        return torch.stack(states[first:]), tokens[first + 1 :]


def collect(
    llm: LLM, num_tokens: int, seed: int, goes_on: Callable[[int], bool] = lambda done: True
) -> HeadData:
    """Let a model write, and keep what it thought, of its prompts as well.

    What all prompts of a batch begin with is kept of none: a chat template says the same each time.

    Args:
        llm: The model; nothing else may run on it meanwhile.
        num_tokens: Tokens to collect, about.
        seed: Of prompts and samples.
        goes_on: Takes the tokens so far; returning False ends it early.

    Raises:
        MeasurementError: The model writes nothing but repetitions.
    """
    longest = int(str(llm.engine.describe()["max_model_len"]))
    num_output = min(_OUTPUT_TOKENS, longest // 4)
    source = prompts(llm.tokenizer, seed, longest - num_output)
    texts: list[tuple[torch.Tensor, list[int]]] = []
    recorder, number, done = Recorder(), 0, 0
    llm.engine.hidden_observer = recorder
    try:
        while done < num_tokens:
            asked = list(itertools.islice(source, _BATCH))
            params = [_params(seed, number + i, num_output) for i in range(len(asked))]
            outputs = llm.generate(asked, params, use_tqdm=False)
            number += len(asked)
            shared = _common_start(asked)
            found = [(output, recorder.take(output, shared)) for output in outputs]
            texts += [text for o, text in found if not is_degenerate(o.outputs[0].token_ids)]
            done = sum(len(tokens) for _, tokens in texts)
            if not goes_on(done):
                break
    finally:
        llm.engine.hidden_observer = None
    return _joined(texts, number - len(texts))


def _common_start(prompts: list[list[int]]) -> int:
    """Return how many tokens all prompts begin with; each keeps one at least."""
    shortest, longest = min(prompts), max(prompts)
    limit = min(map(len, prompts)) - 1
    same = next((i for i in range(limit) if shortest[i] != longest[i]), limit)
    return max(same, 0)


def _params(seed: int, number: int, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=_TEMPERATURES[number % len(_TEMPERATURES)],
        max_tokens=max_tokens,
        seed=seed * 1_000_003 + number,
        prompt_logprobs=0,  # so that the rows of prompts are seen as well
        detokenize=False,
    )


def _joined(texts: list[tuple[torch.Tensor, list[int]]], num_degenerate: int) -> HeadData:
    if not texts:
        raise MeasurementError(
            f"each of {num_degenerate} texts of the model only repeats itself.",
            field="num_texts",
            value=0,
            remedy="A model like this has nothing to learn from.",
        )
    lengths = torch.tensor([len(tokens) for _, tokens in texts])
    return HeadData(
        hidden=torch.cat([states for states, _ in texts]),
        tokens=torch.tensor([token for _, tokens in texts for token in tokens]),
        ends=lengths.cumsum(0).repeat_interleave(lengths),
        num_texts=len(texts),
        num_degenerate=num_degenerate,
    )
