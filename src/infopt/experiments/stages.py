"""What the measuring jobs call: which function runs a stage, and what it starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from infopt.experiments import (
    baseline,
    batching,
    kv_cache,
    moe,
    quantization,
    select,
    serving,
    speculative,
)
from infopt.experiments.power import stage as power
from infopt.experiments.select_spec import COMPOSED
from infopt.experiments.slice_spec import SliceSpec
from infopt.experiments.yaml_files import read_yaml
from infopt.models.registry import load_registry_file
from infopt.registry import Registry
from infopt.results import read_json
from infopt.select import read_recommendation

StageFunction = Callable[..., dict[str, Any]]
STAGES: Registry[StageFunction] = Registry("stage")
STAGES.register("baseline")(baseline.run)
STAGES.register("batching")(batching.run)
STAGES.register("quantization")(quantization.run)
STAGES.register("kv_cache")(kv_cache.run)
STAGES.register("speculative")(speculative.run)
STAGES.register("moe")(moe.run)
STAGES.register("power")(power.run)
STAGES.register("serving")(serving.run)
STAGES.register("select")(select.run)


def run_stage(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Run a slice of any stage and return its manifest."""
    if spec.models_file:
        load_registry_file(spec.models_file)
    return STAGES.get(spec.stage)(spec, results_dir, num_threads=num_threads)


def capacity_spec(spec: SliceSpec, chosen_paths: Iterable[str | Path]) -> SliceSpec:
    """Return the search of the highest rates that follows from what the stages chose."""
    return select.capacity_arms(spec, [read_yaml(path) for path in chosen_paths])


def finalists_spec(
    spec: SliceSpec,
    chosen_paths: Iterable[str | Path],
    ablations: Iterable[str] | None,
    capacity_path: str | Path,
) -> SliceSpec:
    """Return the finalists that follow from what the stages chose, at the composition's rate."""
    chosen = [read_yaml(path) for path in chosen_paths]
    rate = read_json(capacity_path)["capacity"][COMPOSED]["rate_per_s"]
    return select.finalists(spec, chosen, ablations, rate)


def validation_spec(
    spec: SliceSpec,
    manifest_path: str | Path,
    capacity_path: str | Path,
    choice_path: str | Path,
) -> SliceSpec:
    """Return the slice that validates the choice among the finalists."""
    run_name = read_recommendation(choice_path).run
    return select.validation(spec, read_json(manifest_path), read_json(capacity_path), run_name)


def chosen_options(path: str | Path) -> dict[str, Any]:
    """Return the engine options that a stage chose."""
    return read_yaml(path)["engine"]
