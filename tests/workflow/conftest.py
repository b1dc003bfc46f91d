"""Fixtures of the workflow tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# What the test modules of this folder share is a module beside them.
sys.path.insert(0, str(Path(__file__).parent))

from pipeline_run import Pipeline, small_config


@pytest.fixture
def pipeline(tmp_path) -> Pipeline:
    """A fresh working folder."""
    return Pipeline(tmp_path, small_config())
