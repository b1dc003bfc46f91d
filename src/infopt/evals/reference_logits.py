"""A reference's logits, computed once and compared with many candidates.

All logits are kept in float32, since anything shorter would be seen in the KL of a near-lossless
candidate. A file therefore has ``tokens * vocab_size * 4`` bytes: 0.8 GB for 4,096 tokens of a
vocabulary of 49,152. It is memory-mapped, so reading costs page cache and not process memory.
Larger token sets are better compared model against model:
:func:`infopt.evals.fidelity.compare` takes both.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from infopt.errors import MeasurementError, ResultError
from infopt.evals.model import EvalModel
from infopt.evals.progress import track
from infopt.evals.windows import Window, check_windows, scored_logits, windows_digest

FORMAT_VERSION = 1

_LOGITS_NAME = "logits.npy"
_INDEX_NAME = "index.json"


def content_key(identity: str, windows: Sequence[Window]) -> str:
    """Return the key of a reference (which model, run how) on some windows."""
    return hashlib.sha256(f"{identity}\n{windows_digest(windows)}".encode()).hexdigest()


class ReferenceLogits:
    """Logits of a reference on fixed windows; make one with ``compute`` or ``load``.

    Args:
        logits: float32, shape (num_scored_tokens, vocab_size), windows one after the other.
        offsets: First row of each window, by window digest.
        identity: What computed them.
        key: Content key (see :func:`content_key`).
    """

    def __init__(
        self, logits: np.ndarray, offsets: dict[str, int], identity: str, key: str
    ) -> None:
        """Wrap existing arrays."""
        self._logits = logits
        self._offsets = offsets
        self.identity = identity
        self.key = key

    @property
    def vocab_size(self) -> int:
        """Columns."""
        return self._logits.shape[1]

    @property
    def num_bytes(self) -> int:
        """Size in memory or on disk."""
        return self._logits.nbytes

    @classmethod
    def compute(
        cls,
        llm: EvalModel,
        windows: Sequence[Window],
        *,
        identity: str | None = None,
        use_tqdm: bool = True,
    ) -> ReferenceLogits:
        """Run the reference over windows and keep its logits in memory.

        Args:
            llm: The reference.
            windows: On what tokens.
            identity: Name of what computes them; default is the model's whole configuration.
            use_tqdm: Show progress.

        Raises:
            MeasurementError: If there are no windows.
            PromptTooLongError: If a window is longer than the model's limit.
        """
        check_windows(llm, windows)
        identity = repr(llm.config) if identity is None else identity
        num_rows = sum(window.num_scored for window in windows)
        logits = np.empty((num_rows, llm.model_config.vocab_size), dtype=np.float32)
        offsets, row = {}, 0
        for window in track(windows, "reference", use_tqdm):
            rows = scored_logits(llm, window).float().cpu().numpy()
            logits[row : row + window.num_scored] = rows
            offsets[window.digest] = row
            row += window.num_scored
        return cls(logits, offsets, identity, content_key(identity, windows))

    def scored_logits(self, window: Window) -> torch.Tensor:
        """Return the logits of a window's scored tokens, shape (num_scored, vocab_size).

        Raises:
            MeasurementError: If the window is not one of those computed.
        """
        if window.digest not in self._offsets:
            raise MeasurementError(
                f"The reference has no logits for window {window.digest[:12]} ({window.source}).",
                field="windows",
                value=window.digest,
                remedy="Compute the reference on the windows that the candidate is judged on.",
            )
        start = self._offsets[window.digest]
        return torch.from_numpy(np.array(self._logits[start : start + window.num_scored]))

    def save(self, folder: str | Path) -> Path:
        """Write to a folder (all of it or nothing; what was there is replaced).

        Raises:
            ResultError: If the disk has no room for it.
        """
        target = Path(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target.parent).free
        if free < self.num_bytes * 1.01:
            raise ResultError(
                f"Reference logits need {self.num_bytes / 1e9:.2f} GB, {target.parent} has "
                f"{free / 1e9:.2f} GB free.",
                field="folder",
                value=str(target),
                remedy="Use fewer windows, or pass the reference model itself to compare().",
            )
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".reference-") as scratch:
            whole = Path(scratch) / "whole"
            whole.mkdir()
            np.save(whole / _LOGITS_NAME, self._logits)
            (whole / _INDEX_NAME).write_text(json.dumps(self._index(), indent=1) + "\n")
            if target.exists():
                target.rename(Path(scratch) / "old")
            whole.rename(target)
        return target

    @classmethod
    def load(cls, folder: str | Path, *, expected_key: str | None = None) -> ReferenceLogits:
        """Map a saved reference into memory.

        Args:
            folder: Where it was saved.
            expected_key: The :func:`content_key` of the reference and windows that are wanted.

        Raises:
            ResultError: If the folder holds no reference, an incomplete or a different one.
        """
        path = Path(folder)
        try:
            index = json.loads((path / _INDEX_NAME).read_text())
            logits = np.load(path / _LOGITS_NAME, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise ResultError(
                f"{path} holds no readable reference logits: {error}",
                field="folder",
                value=str(path),
                remedy="Compute them again with ReferenceLogits.compute(...).save(folder).",
            ) from error
        _check_index(path, index, logits, expected_key)
        return cls(logits, index["offsets"], index["identity"], index["key"])

    def _index(self) -> dict[str, object]:
        return {
            "format_version": FORMAT_VERSION,
            "identity": self.identity,
            "key": self.key,
            "shape": list(self._logits.shape),
            "offsets": self._offsets,
        }


def _check_index(path: Path, index: dict, logits: np.ndarray, expected_key: str | None) -> None:
    found = (index.get("format_version"), index.get("shape"), str(logits.dtype))
    wanted = (FORMAT_VERSION, list(logits.shape), "float32")
    if found != wanted:
        raise ResultError(
            f"Reference logits in {path} have (format, shape, dtype) {found}, expected {wanted}.",
            field="folder",
            value=str(path),
            remedy="Delete the folder and compute them again.",
        )
    if expected_key is not None and index["key"] != expected_key:
        raise ResultError(
            f"Reference logits in {path} are of another model, configuration or text "
            f"(key {index['key'][:12]}, expected {expected_key[:12]}).",
            field="expected_key",
            value=index["key"],
            remedy="Delete the folder and compute them again.",
        )
