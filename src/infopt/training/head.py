"""Trains a draft head for a model: texts of its own, then learning, within a number of minutes."""

from __future__ import annotations

import importlib.metadata
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infopt.config import EngineConfig
from infopt.engine.clock import Clock, MonotonicClock
from infopt.engine.progress import counter
from infopt.errors import ConfigError
from infopt.llm import LLM
from infopt.models.decoder import Decoder
from infopt.speculative.head import HeadConfig, write_head
from infopt.training.head_data import HeadData, collect
from infopt.training.head_learner import NUM_STEPS, HeadLearner, HeadModule, agreement, start_linear

logger = logging.getLogger(__name__)

MAX_MINUTES = 20.0
_COLLECTING_SHARE = 0.55
"""Of the time: short of texts, more learning does not help."""
_HELDOUT_SHARE = 0.08
_LOOK_EVERY = 50
_PATIENCE = 6
"""Looks at the held-out texts without a better one, after which the training ends."""


@dataclass(frozen=True, slots=True)
class HeadRecipe:
    """How long and how large.

    Attributes:
        minutes: Time for texts and learning together.
        num_tokens: Tokens of text at most.
        num_draft_tokens: Tokens the head can guess: the most frequent ones.
        max_steps: Updates at most; None is limited by the time alone.
        seed: Of prompts, samples and batches.
    """

    minutes: float = 10.0
    num_tokens: int = 200_000
    num_draft_tokens: int = 8192
    max_steps: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: Names the field, its value and the range.
        """
        if not 0 < self.minutes <= MAX_MINUTES:
            raise ConfigError(
                f"minutes must be above 0 and at most {MAX_MINUTES:g}, got {self.minutes!r}.",
                field="minutes",
                value=self.minutes,
            )
        for name, low in (("num_tokens", 512), ("num_draft_tokens", 2), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ConfigError(
                    f"{name} must be a whole number >= {low}, got {value!r}.",
                    field=name,
                    value=value,
                )


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """What a training left.

    Attributes:
        folder: The head.
        record: Data, time, and how often head and model agree on held-out texts.
    """

    folder: Path
    record: dict[str, Any]


def train_head(
    config: EngineConfig,
    out: str | Path,
    recipe: HeadRecipe,
    *,
    clock: Clock | None = None,
    show_progress: bool = True,
) -> TrainedHead:
    """Train a head and write it.

    Args:
        config: The model, and how it runs while it writes its texts.
        out: Folder.
        recipe: How long and how large.
        clock: Source of time, for tests.
        show_progress: Show progress.

    Raises:
        InfoptError: The model cannot be had, or wrote too little text to learn from.
    """
    clock = clock or MonotonicClock()
    start_s, budget_s = clock.now(), recipe.minutes * 60
    with LLM(config=config.replace(speculative=None)) as llm:
        data = _texts(llm, recipe, clock, start_s + _COLLECTING_SHARE * budget_s, show_progress)
        model, identity = llm.engine.runner.model, str(llm.engine.describe()["model_identity"])
        collected_s = clock.now() - start_s
        train, heldout = data.split(_HELDOUT_SHARE)
        _check_enough(train, heldout)
        module = _module(model, identity, train, recipe)
        embedding = _embedding_rows(model)
    start_linear(module, embedding, train)
    training = _Training(module, embedding, train, heldout, recipe, clock, start_s + budget_s)
    training.run(show_progress)
    record = training.record() | {
        "num_tokens": len(data.tokens),
        "num_texts": data.num_texts,
        "num_degenerate_texts": data.num_degenerate,
        "collecting_s": round(collected_s, 3),
        "training_s": round(clock.now() - start_s - collected_s, 3),
        "coverage": round(_coverage(module, heldout), 4),
        "seed": recipe.seed,
        "versions": {"torch": importlib.metadata.version("torch")},
    }
    write_head(Path(out), module.config, training.best, record)
    return TrainedHead(Path(out), record)


class _Training:
    """Batches until the time is over or the held-out texts get no better."""

    def __init__(
        self,
        module: HeadModule,
        embedding: torch.Tensor,
        train: HeadData,
        heldout: HeadData,
        recipe: HeadRecipe,
        clock: Clock,
        end_s: float,
    ) -> None:
        self._learner = HeadLearner(module, embedding, train, recipe.seed)
        self._embedding, self._heldout, self._recipe = embedding, heldout, recipe
        self._clock, self._start_s, self._end_s = clock, clock.now(), end_s
        self._module, self.best = module, module.weights()
        self.curve: list[dict[str, Any]] = []
        self._look(None)

    def run(self, show_progress: bool) -> None:
        loss, steps = 0.0, self._recipe.max_steps
        with counter(100, "learning", show_progress) as advance:
            shown = 0
            while (progress := self._progress()) < 1.0 and not self._is_stuck():
                loss += self._learner.step(progress)
                if self._learner.num_steps % _LOOK_EVERY == 0:
                    self._look(loss / _LOOK_EVERY)
                    loss = 0.0
                advance(int(100 * progress) - shown)
                shown = int(100 * progress)
        if self.curve[-1]["step"] < self._learner.num_steps or steps == 0:
            self._look(None)

    def record(self) -> dict[str, Any]:
        best = max(self.curve, key=lambda point: point["tokens_per_pass"])
        return {"num_steps": self._learner.num_steps, "best": best, "curve": self.curve}

    def _progress(self) -> float:
        if self._recipe.max_steps is not None:
            return self._learner.num_steps / max(self._recipe.max_steps, 1)
        span = max(self._end_s - self._start_s, 1e-9)
        return (self._clock.now() - self._start_s) / span

    def _look(self, loss: float | None) -> None:
        shares = agreement(self._module, self._embedding, self._heldout)
        value = 1.0 + sum(torch.tensor(shares).cumprod(0).tolist())
        if not self.curve or value > max(p["tokens_per_pass"] for p in self.curve):
            self.best = self._module.weights()
        self.curve.append(
            {
                "step": self._learner.num_steps,
                "loss": None if loss is None else round(loss, 4),
                "agreement": [round(share, 4) for share in shares],
                "tokens_per_pass": round(value, 4),
            }
        )

    def _is_stuck(self) -> bool:
        values = [point["tokens_per_pass"] for point in self.curve]
        return len(values) - 1 - values.index(max(values)) >= _PATIENCE


def _texts(
    llm: LLM, recipe: HeadRecipe, clock: Clock, end_s: float, show_progress: bool
) -> HeadData:
    with counter(recipe.num_tokens, "writing tokens", show_progress) as advance:
        shown, last_s = 0, clock.now()

        def goes_on(done: int) -> bool:
            """Whether another batch like the last one would be ready in time."""
            nonlocal shown, last_s
            advance(min(done, recipe.num_tokens) - shown)
            shown, before_s, last_s = min(done, recipe.num_tokens), last_s, clock.now()
            return last_s + (last_s - before_s) < end_s

        return collect(llm, recipe.num_tokens, recipe.seed, goes_on)


def _check_enough(train: HeadData, heldout: HeadData) -> None:
    if not len(train.starts(NUM_STEPS)) or not len(heldout.starts(NUM_STEPS)):
        raise ConfigError(
            f"the model wrote {len(train.tokens) + len(heldout.tokens)} tokens, too few to learn.",
            field="num_tokens",
            value=len(train.tokens),
            remedy="Give it more minutes or more tokens.",
        )


def _module(model: Decoder, identity: str, data: HeadData, recipe: HeadRecipe) -> HeadModule:
    config = model.config
    counts = torch.bincount(data.tokens, minlength=config.vocab_size)[: config.num_real_tokens]
    # Of equals the lowest ids, so that the choice does not depend on a sort.
    order = counts.argsort(descending=True, stable=True)
    token_ids = order[: min(recipe.num_draft_tokens, len(order))].sort().values
    head = HeadConfig(
        hidden_size=config.hidden_size,
        intermediate_size=2 * config.hidden_size,
        num_draft_tokens=len(token_ids),
        vocab_size=config.vocab_size,
        eps=config.rms_norm_eps,
        model_identity=identity,
    )
    scale = float(data.hidden.float().square().mean().sqrt())
    rows = _output_rows(model, token_ids)
    return HeadModule(head, token_ids, rows, scale)


def _embedding_rows(model: Decoder) -> torch.Tensor:
    """Return the embedding, float32 ``(vocab_size, hidden_size)``, however it is kept."""
    ids = torch.arange(model.config.vocab_size, device=model.device)
    return torch.cat([model.embedding(block).float().cpu() for block in ids.split(4096)])


def _output_rows(model: Decoder, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the output head's rows of some tokens: what it makes of unit vectors."""
    width = model.config.hidden_size
    blocks = [
        model.head(block).float().cpu()[:, token_ids]
        for block in torch.eye(width, dtype=model.dtype, device=model.device).split(64)
    ]
    return torch.cat(blocks).T.contiguous().to(torch.bfloat16)


def _coverage(module: HeadModule, data: HeadData) -> float:
    known = torch.zeros(module.config.vocab_size, dtype=torch.bool)
    known[module.token_ids] = True
    return float(known[data.tokens].float().mean())
