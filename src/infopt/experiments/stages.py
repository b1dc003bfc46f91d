"""What the pipeline's scripts call: files in, files out, one function per kind of job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from infopt.experiments import baseline, batching, select
from infopt.experiments.choose import choose_stage
from infopt.experiments.spec import SliceSpec
from infopt.experiments.tables import collect, retire_others
from infopt.models.registry import load_registry_file
from infopt.registry import Registry
from infopt.results import read_json, write_table, write_text_atomic
from infopt.select import read_recommendation

StageFunction = Callable[..., dict[str, Any]]
STAGES: Registry[StageFunction] = Registry("stage")
STAGES.register("baseline")(baseline.run)
STAGES.register("batching")(batching.run)
STAGES.register("select")(select.run)


def run_stage(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Run a slice of any stage and return its manifest."""
    if spec.models_file:
        load_registry_file(spec.models_file)
    return STAGES.get(spec.stage)(spec, results_dir, num_threads=num_threads)


def collect_stage(
    manifest_paths: Iterable[str | Path],
    specs: Sequence[str],
    *,
    results_dir: str | Path,
    floor: str | Mapping[str, Any] | None,
    table_path: str | Path,
    chosen_path: str | Path,
) -> None:
    """Write the table of a stage and what it chose.

    Args:
        manifest_paths: Manifests of its slices.
        specs: Their specifications as JSON.
        results_dir: Folder of all results.
        floor: Quality floor.
        table_path: Where the table goes.
        chosen_path: Where the choice goes.
    """
    manifests = [read_json(path) for path in manifest_paths]
    retire_others(manifests, results_dir)
    table = collect(manifests, results_dir)
    write_table(table, table_path)
    chosen = choose_stage(table, [SliceSpec.from_json(text) for text in specs], floor)
    write_yaml(chosen, chosen_path)


def finalists_spec(
    spec: SliceSpec, chosen_paths: Iterable[str | Path], ablations: Iterable[str]
) -> SliceSpec:
    """Return the finalists that follow from what the stages chose."""
    return select.finalists(spec, [read_yaml(path) for path in chosen_paths], ablations)


def validation_spec(
    spec: SliceSpec, manifest_path: str | Path, choice_path: str | Path
) -> SliceSpec:
    """Return the slice that validates the choice among the finalists."""
    run_name = read_recommendation(choice_path).run
    return select.validation(spec, read_json(manifest_path), run_name)


def chosen_options(path: str | Path) -> dict[str, Any]:
    """Return the engine options that a stage chose."""
    return read_yaml(path)["engine"]


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that the pipeline wrote."""
    import yaml

    return yaml.safe_load(Path(path).read_text("utf-8"))


def write_yaml(document: Mapping[str, Any], path: str | Path) -> None:
    """Write plain data as YAML, atomically."""
    import yaml

    write_text_atomic(path, yaml.safe_dump(dict(document), sort_keys=False, width=100))
