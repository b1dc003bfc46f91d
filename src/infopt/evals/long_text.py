"""Quality behind long prompts: what a compressed KV cache can lose and short windows cannot show.

Passkeys at several depths and lengths, numbers given in earlier turns of a conversation, and how
the decoding of a long text goes on (`infopt.evals.forced`). The report has the form of the quality
suite's, under the tier name ``long``, so floors and tables read it alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from infopt.errors import PromptTooLongError, check_known_keys
from infopt.evals import fidelity as fid
from infopt.evals.forced import forced_logits
from infopt.evals.model import EvalModel, max_tokens_of
from infopt.evals.perplexity import perplexity_from_nll
from infopt.evals.suite import KINDS, QualityReport
from infopt.evals.tasks import TASKS, Task, TaskResult
from infopt.evals.tasks.passkey import MAX_ANSWER_TOKENS
from infopt.evals.windows import WindowSet, corpus_windows
from infopt.llm import LLM

TIER = "long"

Logits = Mapping[str, list[torch.Tensor]]
"""By kind of text, one entry ``(num_scored, vocab_size)`` per window."""


@dataclass(frozen=True, slots=True)
class LongText:
    """How much is measured.

    Attributes:
        context: Tokens of a text, those that count included.
        num_scored: Tokens at its end that are decoded and count.
        num_windows: Texts of docs, and as many of code.
        passkeys: Prompts with a hidden number.
        passkey_lengths: Their lengths in tokens, taken in turn; those beyond the limit are left
            out. A length that is listed twice comes twice as often.
        dialogues: Conversations.
        seed: Chooses items.
    """

    context: int = 1024
    num_scored: int = 48
    num_windows: int = 4
    passkeys: int = 40
    passkey_lengths: tuple[int, ...] = (256, 512, 1024)
    dialogues: int = 8
    seed: int = 0

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> LongText:
        """Read options.

        Raises:
            ConfigError: An unknown key.
        """
        check_known_keys(options, [f.name for f in fields(cls)], "long_text")
        values = dict(options)
        if "passkey_lengths" in values:
            values["passkey_lengths"] = tuple(values["passkey_lengths"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class LongReport:
    """Quality behind long prompts.

    Attributes:
        quality: The report.
        outcomes: Results of the tasks, item by item.
    """

    quality: QualityReport
    outcomes: Mapping[str, TaskResult]


def judge_logits(llm: LLM, settings: LongText) -> Logits:
    """Return what the judge of fidelity computes on the texts."""
    return {kind: forced_logits(llm, made.windows) for kind, made in _windows(llm, settings)}


def run_long_text(llm: LLM, settings: LongText, judge: Logits) -> LongReport:
    """Measure a configuration.

    Args:
        llm: The configuration.
        settings: How much.
        judge: From `judge_logits`, of the model that fidelity counts from.

    Raises:
        PromptTooLongError: The model's limit is below the texts or the shortest passkey.
    """
    sets = dict(_windows(llm, settings))
    parts = {kind: _compare(judge[kind], llm, made) for kind, made in sets.items()}
    tasks = _run_tasks(llm, settings)
    protocol = {
        "tier": TIER,
        "seed": settings.seed,
        "texts": {kind: f"{made.protocol}/decoded" for kind, made in sets.items()},
        "tasks": {name: result.protocol for name, result in tasks.items()},
    }
    report = QualityReport(
        protocol,
        {
            kind: perplexity_from_nll(
                llm, sets[kind].windows, [p.candidate_nll for p in of_kind], seed=settings.seed
            )
            for kind, of_kind in parts.items()
        },
        tasks,
        fid.summarise([p for of_kind in parts.values() for p in of_kind], seed=settings.seed),
        {kind: fid.perplexity_ratio(p, seed=settings.seed) for kind, p in parts.items()},
    )
    return LongReport(report, tasks)


def passkey_lengths(llm: EvalModel, settings: LongText) -> tuple[int, ...]:
    """Return the lengths that fit.

    Raises:
        PromptTooLongError: None does.
    """
    limit = max_tokens_of(llm) - MAX_ANSWER_TOKENS
    lengths = tuple(n for n in settings.passkey_lengths if n <= limit)
    if not lengths:
        shortest = min(settings.passkey_lengths)
        raise PromptTooLongError(
            f"max_model_len={max_tokens_of(llm)} is too short for a passkey prompt of {shortest} "
            f"tokens with {MAX_ANSWER_TOKENS} for the answer.",
            field="passkey_lengths",
            value=shortest,
            remedy=f"Raise max_model_len to {shortest + MAX_ANSWER_TOKENS}, or list a shorter one.",
        )
    return lengths


def same_answers(reference: TaskResult, candidate: TaskResult) -> float:
    """Return the share of items that both answered with the same text, right or wrong."""
    pairs = zip(reference.outcomes, candidate.outcomes, strict=True)
    return sum(r.prediction == c.prediction for r, c in pairs) / len(reference.outcomes)


def _windows(llm: LLM, settings: LongText) -> list[tuple[str, WindowSet]]:
    num_scored = settings.num_scored
    return [
        (
            kind,
            corpus_windows(
                llm,
                kind,
                context=settings.context,
                stride=num_scored,
                max_tokens=num_scored * settings.num_windows,
            ),
        )
        for kind in KINDS
    ]


def _compare(judge: list[torch.Tensor], llm: LLM, made: WindowSet) -> list[fid.TokenFidelity]:
    logits = forced_logits(llm, made.windows)
    return [
        fid.compare_logits(expected, actual, window.scored_ids)
        for expected, actual, window in zip(judge, logits, made.windows, strict=True)
    ]


def _run_tasks(llm: LLM, settings: LongText) -> dict[str, TaskResult]:
    made: dict[str, tuple[Task, int]] = {
        "passkey": (
            TASKS.get("passkey")(**{"lengths": passkey_lengths(llm, settings)}),
            settings.passkeys,
        ),
        "dialogue": (TASKS.get("dialogue")(), settings.dialogues),
    }
    return {
        name: task.evaluate(llm, num_items=count, seed=settings.seed, use_tqdm=False)
        for name, (task, count) in made.items()
    }
