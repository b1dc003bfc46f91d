"""How sure a model was when it chose, without knowing what is right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infopt.evals.model import EvalModel, max_tokens_of
from infopt.evals.tasks.base import ChoiceItem, Normalise, encode_choices, judge_item
from infopt.evals.tasks.outcome import ItemOutcome


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """One item, answered by choosing.

    Attributes:
        outcome: What was chosen, and whether it was right.
        prompt_logprob: Mean log-probability of the prompt's tokens but the first, in nats.
        mean_logprob: The same of the tokens of the choice that was taken.
        margin: Lead of that choice over the next best, in nats per token of it.
    """

    outcome: ItemOutcome
    prompt_logprob: float
    mean_logprob: float
    margin: float


def fits(llm: EvalModel, item: ChoiceItem) -> bool:
    """Tell whether a model can score the item, and has two tokens of prompt at least."""
    texts, starts = encode_choices(llm, [item])
    return max(map(len, texts)) <= max_tokens_of(llm) and min(starts) > 1


def answer_item(llm: EvalModel, item: ChoiceItem, normalise: Normalise) -> ChoiceAnswer:
    """Let a model choose.

    Args:
        llm: The model.
        item: One that `fits`.
        normalise: How choices of different length compare.

    Raises:
        MeasurementError: If a log-probability is not finite.
    """
    texts, starts = encode_choices(llm, [item])
    # The first text gives the log-probabilities of the prompt as well.
    scores = llm.score(list(texts), start=[0, *starts[1:]], use_tqdm=False)
    outcome = judge_item(item, scores, starts, normalise)
    start = starts[0]
    rows = [np.array(score.logprobs[start:], dtype=np.float64) for score in scores]
    totals = [float(row.sum()) for row in rows]
    taken = item.choices.index(outcome.prediction)
    others = [total for place, total in enumerate(totals) if place != taken]
    prompt = np.array(scores[0].logprobs[1:start], dtype=np.float64)
    return ChoiceAnswer(
        outcome,
        prompt_logprob=float(prompt.mean()),
        mean_logprob=float(rows[taken].mean()),
        margin=(totals[taken] - max(others)) / len(rows[taken]),
    )
