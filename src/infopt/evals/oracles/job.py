"""What an oracle is given: a model folder, calibration text, and the text that is scored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infopt import LLM
from infopt.errors import UnsupportedModelError
from infopt.evals.windows import WindowSet, corpus_windows, windows_digest
from infopt.models.config import ModelConfig
from infopt.models.fingerprint import content_identity
from infopt.models.registry import resolve_model
from infopt.quantization.calibration import CalibrationSet

CONTEXT = 256
SCORED_TOKENS = 16_384  # per text
SOURCES = ("docs", "code")
CALIBRATION = CalibrationSet(num_sequences=32)


@dataclass(frozen=True, slots=True)
class Job:
    """A model and the text for it.

    Attributes:
        model: Its name.
        folder: Where it lies, as safetensors.
        calibration: int64 ``(num_sequences, length)``.
        windows: What is scored, per text.
    """

    model: str
    folder: Path
    calibration: torch.Tensor
    windows: Mapping[str, WindowSet]

    def save(self, path: Path) -> None:
        """Write the file that oracles read."""
        arrays: dict[str, Any] = {
            "folder": str(self.folder),
            "calibration": self.calibration.numpy(),
        }
        for source, made in self.windows.items():
            arrays[f"windows/{source}"] = np.array([w.token_ids for w in made.windows])
            arrays[f"num_scored/{source}"] = made.windows[0].num_scored
        np.savez(path, **arrays)

    def describe(self) -> dict[str, Any]:
        """Return plain data that is equal only where model, calibration and scored text are."""
        digest = hashlib.sha256(self.calibration.numpy().tobytes()).hexdigest()
        return {
            "model": {"name": self.model, "identity": content_identity(self.folder)},
            "calibration": {**CALIBRATION.to_dict(), "sha256": digest},
            "windows": {
                source: {"protocol": made.protocol, "sha256": windows_digest(made.windows)}
                for source, made in self.windows.items()
            },
        }


def make_job(model: str) -> Job:
    """Prepare a registered model, or a folder.

    Raises:
        UnsupportedModelError: If it is no folder of safetensors.
    """
    folder = resolve_model(model).path
    if not folder.is_dir():
        raise UnsupportedModelError(
            f"Oracles read folders of safetensors, and {model!r} is the file {folder.name}.",
            field="model",
            value=model,
            remedy="Name a folder, or a model that is stored as one.",
        )
    llm = LLM(model, dtype="float32", max_num_seqs=1)
    config = llm.model_config
    if not isinstance(config, ModelConfig):
        raise UnsupportedModelError(
            f"Oracles are compared with native models, and {model!r} runs through transformers.",
            field="model",
            value=model,
        )
    return Job(
        Path(model).name,
        folder.resolve(),
        CALIBRATION.token_ids(config, llm.tokenizer),
        {
            source: corpus_windows(llm, source, context=CONTEXT, max_tokens=SCORED_TOKENS)
            for source in SOURCES
        },
    )
