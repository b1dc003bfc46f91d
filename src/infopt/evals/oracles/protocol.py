"""The oracle's side: reads the job, calls the oracle, writes what it found.

    python protocol.py ORACLE_FILE JOB OUT

Oracles run in other environments, so this file imports nothing of infopt. ORACLE_FILE defines
``PACKAGES``, whose versions are recorded, and ``run(job)``, which returns plain data.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

BATCH = 8  # windows at a time


class Job:
    """What an oracle is given.

    Args:
        path: File that the host wrote (see ``job.py``).

    Attributes:
        folder: Model folder in the form that transformers reads.
        calibration: int64 ``(num_sequences, length)``.
    """

    def __init__(self, path: str | Path) -> None:
        """Read the file."""
        arrays = dict(np.load(path))
        self.folder = str(arrays["folder"])
        self.calibration = torch.from_numpy(arrays["calibration"])
        self._windows = {
            name.removeprefix("windows/"): torch.from_numpy(array)
            for name, array in arrays.items()
            if name.startswith("windows/")
        }
        self._num_scored = {source: int(arrays[f"num_scored/{source}"]) for source in self._windows}

    def model(self) -> Any:
        """Load the model in float32, fresh."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()

    def perplexity(self, model: Any) -> dict[str, float]:
        """Return the token perplexity on each text: exp of the mean nll of the scored tokens."""
        return {source: self._perplexity(model, source) for source in self._windows}

    @torch.no_grad()
    def _perplexity(self, model: Any, source: str) -> float:
        num_scored, total = self._num_scored[source], 0.0
        for ids in self._windows[source].split(BATCH):
            # Row i predicts token i + 1.
            logits = model(input_ids=ids, use_cache=False).logits[:, -num_scored - 1 : -1]
            scored = logits.double().log_softmax(-1).gather(-1, ids[:, -num_scored:, None])
            total -= float(scored.sum())
        return float(np.exp(total / (num_scored * len(self._windows[source]))))


def main(oracle_file: str, job: str, out: str) -> None:
    """Run an oracle."""
    oracle = runpy.run_path(oracle_file)
    versions = {name: importlib.metadata.version(name) for name in oracle["PACKAGES"]}
    found = oracle["run"](Job(job))
    answer = {"versions": {"python": platform.python_version(), **versions}, **found}
    Path(out).write_text(json.dumps(answer), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
