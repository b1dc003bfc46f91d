"""Small random checkpoints of families that transformers runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infopt.evals.families.cases import CASES
from infopt.evals.families.write import write_checkpoint


@pytest.fixture(scope="session")
def family_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Factory of folders by ``model_type``; do not write into them."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            write_checkpoint(next(case for case in CASES if case.family == family), made[family])
        return made[family]

    return make
