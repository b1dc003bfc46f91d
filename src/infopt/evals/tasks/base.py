"""The two kinds of task: choosing by likelihood and generating. A task implements ``items``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from infopt.errors import ConfigError, MeasurementError
from infopt.evals.model import EvalModel, check_fits
from infopt.evals.tasks.outcome import ItemOutcome, TaskResult
from infopt.outputs import ScoreOutput
from infopt.registry import Registry
from infopt.sampling_params import SamplingParams

Normalise = Literal["none", "bytes"]


@dataclass(frozen=True, slots=True)
class ChoiceItem:
    """A prompt with possible continuations.

    Attributes:
        item_id: Unique name within the task.
        prompt: Text before the choice, without a trailing space.
        choices: Continuations, the right one first; all different. Order has no effect on scoring.
    """

    item_id: str
    prompt: str
    choices: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse items without a wrong choice, or with a wrong choice equal to the right one."""
        if len(self.choices) < 2 or len(set(self.choices)) != len(self.choices):
            raise MeasurementError(
                f"Item {self.item_id} needs at least two different choices, has {self.choices}.",
                field="choices",
                value=self.choices,
                remedy="Give distractors that differ from the answer and from each other.",
            )


@dataclass(frozen=True, slots=True)
class GenerationItem:
    """A prompt and the answer that a greedy completion should hold.

    Attributes:
        item_id: Unique name within the task.
        prompt: Text or token ids.
        answer: The right answer.
        max_tokens: Most tokens to generate.
        stop: Strings that end the completion.
    """

    item_id: str
    prompt: str | tuple[int, ...]
    answer: str
    max_tokens: int
    stop: tuple[str, ...] = ()


class Task(ABC):
    """Something that makes a :class:`TaskResult` from a model."""

    name: ClassVar[str]

    def protocol(self, num_items: int, seed: int) -> str:
        """Return the sentence that reproduces a run."""
        return f"{self.name}/n={num_items}/seed={seed}"

    @abstractmethod
    def evaluate(
        self, llm: EvalModel, *, num_items: int, seed: int = 0, use_tqdm: bool = True
    ) -> TaskResult:
        """Run the task.

        Args:
            llm: The model.
            num_items: How many items.
            seed: Chooses the items.
            use_tqdm: Show progress.
        """


class ChoiceTask(Task):
    """Ranks continuations by their log-probability; ``items`` is all a task must say."""

    normalise: ClassVar[Normalise] = "none"

    @abstractmethod
    def items(self, num_items: int, seed: int) -> list[ChoiceItem]:
        """Return the items, the same ones for the same arguments."""

    def protocol(self, num_items: int, seed: int) -> str:
        """Return the sentence that reproduces a run."""
        return f"{super().protocol(num_items, seed)}/likelihood/normalise={self.normalise}"

    def evaluate(
        self, llm: EvalModel, *, num_items: int, seed: int = 0, use_tqdm: bool = True
    ) -> TaskResult:
        """Score all choices of all items in one batch.

        Raises:
            ConfigError: If ``num_items`` is below 1.
            PromptTooLongError: If an item is longer than the model's limit.
        """
        _check_num_items(num_items)
        items = self.items(num_items, seed)
        texts, starts = encode_choices(llm, items)
        check_fits(llm, max(len(ids) for ids in texts), f"{self.name} items")
        scores = score_choices(llm, items, texts, starts, use_tqdm)
        outcomes, row = [], 0
        for item in items:
            rows = slice(row, row + len(item.choices))
            outcomes.append(judge_item(item, scores[rows], starts[rows], self.normalise))
            row = rows.stop
        return TaskResult(self.name, self.protocol(num_items, seed), tuple(outcomes))


class GenerationTask(Task):
    """Completes prompts greedily; ``items`` is all a task must say."""

    @abstractmethod
    def items(self, llm: EvalModel, num_items: int, seed: int) -> list[GenerationItem]:
        """Return the items, the same ones for the same arguments and tokenizer."""

    def is_correct(self, item: GenerationItem, text: str) -> bool:
        """Judge a completion; by default the answer must be its first word."""
        return text.split()[:1] == [item.answer]

    def protocol(self, num_items: int, seed: int) -> str:
        """Return the sentence that reproduces a run."""
        return f"{super().protocol(num_items, seed)}/greedy"

    def evaluate(
        self, llm: EvalModel, *, num_items: int, seed: int = 0, use_tqdm: bool = True
    ) -> TaskResult:
        """Complete all items in one batch.

        Raises:
            ConfigError: If ``num_items`` is below 1.
            PromptTooLongError: If an item with its answer is longer than the model's limit.
        """
        _check_num_items(num_items)
        items = self.items(llm, num_items, seed)
        prompts = [_prompt_ids(llm, item) for item in items]
        longest = max(len(p) + i.max_tokens for p, i in zip(prompts, items, strict=True))
        check_fits(llm, longest, f"{self.name} items")
        params = [
            SamplingParams(temperature=0.0, max_tokens=item.max_tokens, stop=item.stop)
            for item in items
        ]
        outputs = llm.generate(list(prompts), params, use_tqdm=use_tqdm)
        texts = [output.outputs[0].text for output in outputs]
        outcomes = [
            ItemOutcome(item.item_id, self.is_correct(item, text), text, item.answer)
            for item, text in zip(items, texts, strict=True)
        ]
        return TaskResult(self.name, self.protocol(num_items, seed), tuple(outcomes))


TASKS: Registry[type[Task]] = Registry("task")


def encode_choices(
    llm: EvalModel, items: Sequence[ChoiceItem]
) -> tuple[list[list[int]], list[int]]:
    """Tokenize each prompt with each choice.

    Returns:
        The token ids, and for each the first position that is scored. Tokens may merge across the
        border of prompt and choice; what is scored starts where the tokens of an item's choices (or
        of the bare prompt) first differ, so that all choices of an item are judged from one point.
    """
    texts, starts = [], []
    for item in items:
        encoded = [llm.tokenizer.encode(item.prompt + choice) for choice in item.choices]
        bare = llm.tokenizer.encode(item.prompt)
        start = min(_common_prefix(bare, ids) for ids in encoded)
        texts += encoded
        starts += [max(start, 1)] * len(encoded)  # the first token has no log-probability
    return texts, starts


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many leading tokens are equal."""
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return i
    return min(len(first), len(second))


def score_choices(
    llm: EvalModel,
    items: Sequence[ChoiceItem],
    texts: Sequence[list[int]],
    starts: Sequence[int],
    use_tqdm: bool,
) -> list[ScoreOutput]:
    """Score all choices, the first one of each item before all second ones.

    So the prompt of an item is in the prefix cache when its next choice starts.
    """
    turns = [turn for item in items for turn in range(len(item.choices))]
    order = sorted(range(len(texts)), key=turns.__getitem__)
    scores = llm.score(
        [texts[row] for row in order], start=[starts[row] for row in order], use_tqdm=use_tqdm
    )
    return [score for _, score in sorted(zip(order, scores, strict=True), key=lambda pair: pair[0])]


def judge_item(
    item: ChoiceItem, scores: Sequence[ScoreOutput], starts: Sequence[int], normalise: Normalise
) -> ItemOutcome:
    """Compare the choices of one item; a tie with a wrong choice is wrong."""
    values = []
    for choice, score, start in zip(item.choices, scores, starts, strict=True):
        total = float(np.sum(np.array(score.logprobs[start:], dtype=np.float64)))
        values.append(total / len(choice.encode()) if normalise == "bytes" else total)
    if not np.isfinite(values).all():
        raise MeasurementError(
            f"Item {item.item_id} has a choice without a finite log-probability: {values}.",
            field="logprobs",
            value=values,
            remedy="The model computed NaN, or masks tokens of the choices.",
        )
    margin = values[0] - max(values[1:])
    chosen = item.choices[int(np.argmax(values))]
    return ItemOutcome(item.item_id, margin > 0, chosen, item.choices[0], margin)


def _prompt_ids(llm: EvalModel, item: GenerationItem) -> list[int]:
    if isinstance(item.prompt, str):
        return llm.tokenizer.encode(item.prompt)
    return list(item.prompt)


def _check_num_items(num_items: int) -> None:
    if num_items < 1:
        raise ConfigError(
            f"num_items must be at least 1, got {num_items}.", field="num_items", value=num_items
        )
