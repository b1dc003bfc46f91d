"""A slice of the stage `power` on a tiny model, and the stage's results, measured once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infopt.experiments.power import stage
from infopt.experiments.power.collect import collect_power
from infopt.experiments.slices import write_manifest
from infopt.experiments.spec import SliceSpec

LOAD = {"kind": "synthetic", "num_requests": 4, "prompt_tokens": 12, "output_tokens": 4}
QUOTE = {"date": "2026-11-01", "source": "made up for this test"}
PRICES = {
    "machine": {"currency": "EUR", "per_hour": 0.4, **QUOTE},
    "elsewhere": {
        "api": {"currency": "EUR", "per_million_input": 1, "per_million_output": 4, **QUOTE}
    },
}


def power_spec(model: str | Path, name: str, **changes: Any) -> SliceSpec:
    """A slice of two pairs; cold starts of the one format that the model has."""
    values: dict[str, Any] = {
        "stage": "power",
        "name": name,
        "model": str(model),
        "reference": "none" if name == "cold_start" else "",
        "base": {"max_model_len": 128, "num_kv_pages": 64, "dtype": "float32", "device": "cpu"},
        "shared": {},
        "candidates": {"none": {"quantization": "none"}} if name == "cold_start" else {},
        "workloads": {"load": LOAD},
        "repeats": 2,
        "slo": {"ttft_s": 60.0},
        "decides": name == "threads",
        "energy": {"meter": "modelled"},
        "options": {
            "threads": {"counts": None},
            "replicas": {"counts": [2]},
            "cold_start": {"starts": 1, "idle_s": 0.05},
            "caps": {"caps_w": [300], "clocks_mhz": [900]},
        }[name],
    }
    return SliceSpec(**(values | changes))


@pytest.fixture
def make_power_spec(tiny_model_dir) -> Callable[..., SliceSpec]:
    """Factory of slices on the tiny model."""
    return lambda name, **changes: power_spec(tiny_model_dir("llama"), name, **changes)


@pytest.fixture(scope="session")
def measured(tmp_path_factory, tiny_model_dir) -> Path:
    """Results of `threads` and `cold_start` on two cores, collected with prices."""
    folder = tmp_path_factory.mktemp("power")
    specs = [power_spec(tiny_model_dir("llama"), name) for name in ("threads", "cold_start")]
    paths = []
    for spec in specs:
        paths.append(folder / "slices" / f"{spec.name}.json")
        write_manifest(stage.run(spec, folder, num_threads=2), paths[-1])
    (folder / "chosen").mkdir()
    collect_power(
        paths,
        [spec.to_json() for spec in specs],
        results_dir=folder,
        prices=PRICES,
        table_path=folder / "tables" / "power.parquet",
        chosen_path=folder / "chosen" / "power.yaml",
        winners_path=folder / "winners" / "power.yaml",
    )
    return folder
