from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infopt.config import EngineConfig
from infopt.results import RunRecord

HARDWARE = {"cpu_model": "test cpu", "num_cores": 2, "cpu_features": ["avx2"], "gpus": []}


@pytest.fixture
def hardware() -> dict[str, Any]:
    return dict(HARDWARE)


@pytest.fixture
def make_record() -> Callable[..., RunRecord]:
    """Factory of records that are complete except for what a test changes."""

    def make(**changes: Any) -> RunRecord:
        values: dict[str, Any] = {
            "stage": "batching",
            "slug": "max_num_seqs=8",
            "config": EngineConfig(model="tiny", max_num_seqs=8).to_dict(),
            "commit": "version:0.1.0",
            "versions": {"infopt": "0", "python": "3", "torch": "2", "transformers": None},
            "hardware": dict(HARDWARE),
            "seeds": (0, 1),
            "started": "2026-01-02T03:04:05Z",
            "duration_s": 1.5,
        }
        return RunRecord(**(values | changes))

    return make
