"""The quality suite: two tiers, one report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from infopt.errors import ConfigError, PromptTooLongError, nearest
from infopt.evals import fidelity as fid
from infopt.evals.model import EvalModel, max_tokens_of
from infopt.evals.perplexity import Perplexity, perplexity, perplexity_from_nll
from infopt.evals.progress import track
from infopt.evals.reference_logits import ReferenceLogits
from infopt.evals.tasks import TASKS, Task, TaskResult
from infopt.evals.tasks.passkey import MAX_ANSWER_TOKENS
from infopt.evals.windows import Window, WindowSet, corpus_windows

TierName = Literal["screen", "full"]
KINDS = ("docs", "code")


@dataclass(frozen=True, slots=True)
class Tier:
    """How much a suite measures.

    Attributes:
        context: Tokens per window.
        tokens_per_kind: Tokens scored of docs, and as many of code.
        tasks: Number of items by task name.
        passkey_lengths: Prompt lengths in tokens; those above the model's limit are left out.
        code_choices: Choices per item of the code task.
    """

    context: int
    tokens_per_kind: int
    tasks: Mapping[str, int]
    passkey_lengths: tuple[int, ...]
    code_choices: int


TIERS: Mapping[str, Tier] = MappingProxyType(
    {
        "screen": Tier(
            context=256,
            tokens_per_kind=2048,
            tasks={"arithmetic": 40, "code": 40, "multilingual": 40, "passkey": 4},
            passkey_lengths=(256, 1024),
            code_choices=2,
        ),
        "full": Tier(
            context=512,
            tokens_per_kind=8192,
            tasks={
                "arithmetic": 120,
                "arithmetic_generate": 60,
                "code": 80,
                "multilingual": 120,
                "passkey": 15,
            },
            passkey_lengths=(512, 1536, 3600),
            code_choices=4,
        ),
    }
)
"""``screen`` is for every candidate, ``full`` for finalists."""


@dataclass(frozen=True, slots=True)
class QualityReport:
    """Quality of one configuration.

    Attributes:
        protocol: Everything that must be equal for two reports to compare.
        perplexity: By kind of text.
        tasks: Results with every item's outcome, by task name.
        fidelity: Comparison with the reference (None without one).
        perplexity_ratio: Candidate / reference with its 95 % interval, by kind (empty without one).
    """

    protocol: Mapping[str, Any]
    perplexity: Mapping[str, Perplexity]
    tasks: Mapping[str, TaskResult]
    fidelity: fid.Fidelity | None = None
    perplexity_ratio: Mapping[str, tuple[float, float | None, float | None]] = field(
        default_factory=dict
    )

    def to_dict(self, *, with_items: bool = False) -> dict[str, Any]:
        """Return plain data for a record.

        Args:
            with_items: Keep each item's outcome, for paired comparison.
        """
        ratios = self.perplexity_ratio.items()
        details = self.fidelity.to_dict() if self.fidelity else None
        return {
            "protocol": dict(self.protocol),
            "perplexity": {k: p.token_perplexity for k, p in self.perplexity.items()},
            "perplexity_details": {k: p.to_dict() for k, p in self.perplexity.items()},
            "perplexity_ratio": {
                kind: {"ratio": ratio, "low": low, "high": high}
                for kind, (ratio, low, high) in ratios
            },
            "kl_mean": self.fidelity.kl_mean if self.fidelity else None,
            "kl_p99": self.fidelity.kl_p99 if self.fidelity else None,
            "top1_agreement": self.fidelity.top1_agreement if self.fidelity else None,
            "fidelity_details": details,
            "tasks": {name: t.to_dict(with_items=with_items) for name, t in self.tasks.items()},
        }


def run_suite(
    llm: EvalModel,
    tier: TierName = "screen",
    *,
    reference: EvalModel | ReferenceLogits | None = None,
    seed: int = 0,
    progress: bool = True,
) -> QualityReport:
    """Measure the quality of a configuration.

    Args:
        llm: The configuration to judge.
        tier: ``screen`` or ``full``.
        reference: The reference model, or its logits on :func:`suite_windows`. The reference itself
            is measured with None.
        seed: Chooses items and resampling.
        progress: Show progress bars.

    Raises:
        ConfigError: If the tier is unknown.
        PromptTooLongError: If the model's limit is below the tier's windows or shortest passkey.
        MeasurementError: If logits are NaN, or the reference has other windows or vocabulary.
    """
    sets = window_sets(llm, tier)
    tasks = _tasks(llm, tier)
    texts = _text_quality(llm, sets, reference, seed, progress)
    results, names = {}, {}
    for name, task in track(list(tasks.items()), f"tasks ({tier})", progress):
        num_items = TIERS[tier].tasks[name]
        results[name] = task.evaluate(llm, num_items=num_items, seed=seed, use_tqdm=progress)
        names[name] = results[name].protocol
    protocol = {
        "tier": tier,
        "seed": seed,
        "texts": {kind: windows.protocol for kind, windows in sets.items()},
        "tasks": names,
    }
    return QualityReport(protocol, texts.perplexity, results, texts.fidelity, texts.ratio)


def suite_windows(llm: EvalModel, tier: TierName = "screen") -> list[Window]:
    """Return all windows of a tier: what ``ReferenceLogits.compute`` must have seen."""
    return [window for made in window_sets(llm, tier).values() for window in made.windows]


def window_sets(llm: EvalModel, tier: TierName) -> dict[str, WindowSet]:
    """Return the held-out windows of a tier by kind of text.

    Raises:
        ConfigError: If the tier is unknown.
    """
    settings = _tier(tier)
    return {
        kind: corpus_windows(
            llm, kind, context=settings.context, max_tokens=settings.tokens_per_kind
        )
        for kind in KINDS
    }


@dataclass(frozen=True, slots=True)
class _TextQuality:
    """Perplexity, fidelity and perplexity ratio over all windows."""

    perplexity: dict[str, Perplexity]
    fidelity: fid.Fidelity | None = None
    ratio: dict[str, tuple[float, float | None, float | None]] = field(default_factory=dict)


def _text_quality(
    llm: EvalModel,
    sets: Mapping[str, WindowSet],
    reference: EvalModel | ReferenceLogits | None,
    seed: int,
    progress: bool,
) -> _TextQuality:
    """Measure the windows; with a reference, one pass over the logits gives everything."""
    if reference is None:
        return _TextQuality(
            {k: perplexity(llm, s.windows, seed=seed, use_tqdm=progress) for k, s in sets.items()}
        )
    parts = {
        kind: fid.compare_windows(reference, llm, made.windows, use_tqdm=progress)
        for kind, made in sets.items()
    }
    return _TextQuality(
        {
            kind: perplexity_from_nll(
                llm, sets[kind].windows, [part.candidate_nll for part in of_kind], seed=seed
            )
            for kind, of_kind in parts.items()
        },
        fid.summarise([part for of_kind in parts.values() for part in of_kind], seed=seed),
        {kind: fid.perplexity_ratio(of_kind, seed=seed) for kind, of_kind in parts.items()},
    )


def _tasks(llm: EvalModel, tier: TierName) -> dict[str, Task]:
    """Return the tier's tasks, set up for this model."""
    return {name: TASKS.get(name)(**_task_options(llm, tier, name)) for name in TIERS[tier].tasks}


def _task_options(llm: EvalModel, tier: TierName, name: str) -> dict[str, Any]:
    if name == "passkey":
        return {"lengths": _passkey_lengths(llm, tier)}
    return {"num_choices": TIERS[tier].code_choices} if name == "code" else {}


def _passkey_lengths(llm: EvalModel, tier: TierName) -> tuple[int, ...]:
    """Return the lengths that fit; the task's protocol says which were used."""
    limit = max_tokens_of(llm) - MAX_ANSWER_TOKENS
    lengths = tuple(n for n in TIERS[tier].passkey_lengths if n <= limit)
    if not lengths:
        shortest = min(TIERS[tier].passkey_lengths)
        raise PromptTooLongError(
            f"max_model_len={max_tokens_of(llm)} is too short for a passkey prompt of {shortest} "
            f"tokens with {MAX_ANSWER_TOKENS} for the answer.",
            field="max_model_len",
            value=max_tokens_of(llm),
            remedy=f"Raise max_model_len to at least {shortest + MAX_ANSWER_TOKENS}.",
        )
    return lengths


def _tier(name: str) -> Tier:
    if name not in TIERS:
        raise ConfigError(
            f"Unknown tier {name!r}.{nearest(name, TIERS)}",
            field="tier",
            value=name,
            remedy=f"Valid: {', '.join(TIERS)}.",
        )
    return TIERS[name]
