"""Fixtures of the pipeline's tests: the schema, and slices small enough to run for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from infopt.bench.roofline import MachinePeaks
from infopt.experiments.config import complete_config, load_schema
from infopt.experiments.spec import SliceSpec

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def schema():
    return load_schema(ROOT / "workflow" / "schemas" / "config.schema.yaml")


@pytest.fixture
def config(schema):
    """The default configuration."""
    return complete_config({}, schema)


@pytest.fixture
def fixed_machine(monkeypatch):
    """A machine whose limits need no second of measuring and no gigabyte of memory."""
    peaks = MachinePeaks(bytes_per_s=1e10, flops_per_s=1e11)
    for module in ("slice_run", "baseline", "capacity"):
        monkeypatch.setattr(f"infopt.experiments.{module}.machine_peaks", lambda llm: peaks)
    return peaks


@pytest.fixture
def make_spec(tiny_model_dir):
    """Factory of slices on a tiny model: two candidates, two pairs."""

    def make(**changes) -> SliceSpec:
        values = {
            "stage": "batching",
            "name": "page_size",
            "model": str(tiny_model_dir("llama")),
            "reference": "page-16",
            "base": {"max_model_len": 128, "num_kv_pages": 64, "dtype": "float32"},
            "shared": {},
            "candidates": {"page-16": {"block_size": 16}, "page-8": {"block_size": 8}},
            "workloads": {
                "load": {
                    "kind": "synthetic",
                    "num_requests": 2,
                    "prompt_tokens": 12,
                    "output_tokens": 3,
                }
            },
            "repeats": 2,
            "slo": {"ttft_s": 60.0},
        }
        return SliceSpec(**(values | changes))

    return make
