"""Trains a model of the family and writes it as a Hugging Face folder with its record."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infopt import corpus
from infopt.errors import ConfigError
from infopt.models.quiet import quiet_transformers
from infopt.training.bigram import Bigram
from infopt.training.curve import write_curve
from infopt.training.loop import Trainer
from infopt.training.model import num_active_parameters, num_parameters
from infopt.training.recipes import LEARNED_SHARE, VOCAB_SIZE, Recipe
from infopt.training.text import (
    KINDS,
    TokenizedCorpus,
    tokenize_corpus,
    train_tokenizer,
    transformers_tokenizer,
)
from infopt.training.validation import WINDOW, Validation, cut_windows, routing_shares, validate

RECORD_NAME = "training.json"
STATE_NAME = "training-state.pt"
_CURVE_WINDOWS = 16  # of each kind
_SHARD_SIZE = "1900KB"  # a file of the repository has 2 MiB at most
_LIBRARIES = ("torch", "transformers", "tokenizers")


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """What a training left.

    Attributes:
        folder: The checkpoint.
        validation: Perplexity by kind of text, of the weights as they were stored.
    """

    folder: Path
    validation: dict[str, Validation]

    @property
    def is_learned(self) -> bool:
        """Whether each kind's perplexity is far enough below the bigram's."""
        return all(v.share <= LEARNED_SHARE for v in self.validation.values())


def train_tiny(
    recipe: Recipe,
    out: str | Path,
    *,
    seed: int = 0,
    num_steps: int | None = None,
    show_progress: bool = True,
) -> TrainedModel:
    """Train, write the checkpoint in bfloat16, and validate what was written.

    A training that was interrupted goes on where its state in ``out`` was last saved. The same
    seed gives the same weights on the same kind of processor, number of threads and versions.

    Args:
        recipe: What to train.
        out: Folder for the checkpoint.
        seed: Seed of weights and batches.
        num_steps: Updates; default is the recipe's.
        show_progress: Show a bar with the loss.

    Raises:
        ConfigError: If the number of steps is below 1, or ``out`` holds the state of a training
            with other settings.
    """
    steps = recipe.num_steps if num_steps is None else num_steps
    if steps < 1:
        raise ConfigError(f"A training needs a step, got {steps}.", field="steps", value=steps)
    out = Path(out)
    tokenizer = train_tokenizer()
    data = tokenize_corpus(tokenizer)
    heldout = np.concatenate([cut_windows(data.heldout[k], _CURVE_WINDOWS) for k in KINDS])
    state_path = out / STATE_NAME
    trainer = Trainer(
        recipe, data.train, heldout, seed=seed, num_steps=steps, state_path=state_path
    )
    trainer.run(show_progress=show_progress)
    _write_checkpoint(trainer.model, transformers_tokenizer(tokenizer), out)
    bigram = Bigram(data.train, VOCAB_SIZE)
    bigram_loss = float(bigram.nll(heldout[:, :-1], heldout[:, 1:]).mean())
    write_curve(trainer.curve, out, recipe.name, bigram_loss)
    validation = _finish(trainer, data, bigram, out)
    state_path.unlink(missing_ok=True)
    return TrainedModel(out, validation)


def _write_checkpoint(model: Any, tokenizer: Any, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with quiet_transformers():
        model.to(torch.bfloat16).save_pretrained(out, max_shard_size=_SHARD_SIZE)
        tokenizer.save_pretrained(out)


def _finish(
    trainer: Trainer, data: TokenizedCorpus, bigram: Bigram, out: Path
) -> dict[str, Validation]:
    """Validate the stored weights and write the record beside them."""
    model = load_float32(out)
    windows = {kind: cut_windows(data.heldout[kind]) for kind in KINDS}
    validation = {kind: validate(model, bigram, windows[kind]) for kind in KINDS}
    record = _record(trainer, model, len(data.train))
    record["validation"] = {kind: value.to_dict() for kind, value in validation.items()}
    if hasattr(model.config, "num_experts"):
        record["routing_shares"] = routing_shares(model, np.concatenate(list(windows.values())))
    (out / RECORD_NAME).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return validation


def load_float32(folder: Path) -> Any:
    """Load a checkpoint with transformers, in float32."""
    from transformers import AutoModelForCausalLM

    with quiet_transformers():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _record(trainer: Trainer, model: Any, num_train_tokens: int) -> dict[str, Any]:
    tokens = trainer.curve[-1].tokens
    return {
        "recipe": trainer.recipe.to_dict(),
        "seed": trainer.seed,
        "num_steps": trainer.num_steps,
        "num_tokens": tokens,
        "num_epochs": round(tokens / num_train_tokens, 2),
        "num_parameters": num_parameters(model),
        "num_active_parameters": num_active_parameters(model),
        "train_loss": round(_last_loss(trainer), 4),
        "validation_window": WINDOW,
        "learned_share": LEARNED_SHARE,
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _LIBRARIES},
        },
        "num_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "corpus": {
            f"{kind}/{split}": corpus.content_hash(kind, split)
            for kind in KINDS
            for split in ("train", "heldout")
        },
        "text_licence": "PSF-2.0",
    }


def _last_loss(trainer: Trainer) -> float:
    losses = [point.loss for point in trainer.curve[-50:]]
    return math.fsum(losses) / len(losses)
