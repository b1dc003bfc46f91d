"""The slices that a configuration asks for, each as a `SliceSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infopt.errors import ConfigError, nearest
from infopt.experiments.judging import with_needed_slo
from infopt.experiments.slice_spec import MEASURES, SliceSpec

RANDOM_MODEL = "random"
"""Value of the configuration key ``model`` that asks for a tiny random model."""


def model_name(model: str, results_dir: str | Path) -> str:
    """Return what the configuration's ``model`` stands for: itself, or where ``random`` lies."""
    return str(Path(results_dir, "models", RANDOM_MODEL)) if model == RANDOM_MODEL else model


def slice_names(config: Mapping[str, Any], stage: str) -> list[str]:
    """Return the slices of a stage, in the order of the configuration."""
    fixed = {"baseline": ["precision"], "serving": ["load"]}  # power: those that are listed
    return fixed[stage] if stage in fixed else list(config[stage])


def slice_spec(config: Mapping[str, Any], stage: str, name: str) -> SliceSpec:
    """Return the specification of a slice.

    Args:
        config: Completed configuration.
        stage: ``baseline``, ``batching``, ``quantization``, ``kv_cache``, ``speculative``,
            ``moe``, ``power`` or ``serving``.
        name: Name of the slice.

    Raises:
        ConfigError: There is no such slice.
    """
    if name not in slice_names(config, stage):
        names = slice_names(config, stage)
        raise ConfigError(
            f"The stage {stage} has no slice {name!r}.{nearest(name, names)}",
            field="slice",
            value=name,
            remedy=f"Slices: {', '.join(names)}.",
        )
    if stage == "serving":
        return _serving_spec(config, name)
    if stage == "power":
        return with_needed_slo(_power_spec(config, name))
    if stage == "baseline":
        return with_needed_slo(_baseline_spec(config, name))
    return with_needed_slo(_listed_spec(config, stage, name))


def _listed_spec(config: Mapping[str, Any], stage: str, name: str) -> SliceSpec:
    """Return a slice that the configuration lists."""
    entry = config[stage][name]
    workloads = {"load": config["workloads"][entry["workload"]]}
    if entry["latency_workload"]:
        workloads["single"] = config["workloads"][entry["latency_workload"]]
    common = common_values(config)
    common["model"] = entry["model"] or common["model"]
    return SliceSpec(
        stage=stage,
        name=name,
        reference=entry["reference"] or entry["candidates"][0]["slug"],
        shared=entry["engine"],
        candidates=_candidates(entry),
        workloads=workloads,
        load=entry["load"],
        repeats=entry["repeats"] or config["repeats"],
        criterion=entry["criterion"],
        slo_limits=tuple(entry["slo_limits"]),
        quality_tier=entry["quality_tier"],
        quality_reference=entry["quality_reference"],
        measure_steps=entry["measure_steps"],
        decides=entry["decides"],
        prefers=entry["prefers"],
        options=_cells(config, entry) | {key: entry[key] for key in MEASURES if entry[key]},
        **common,
    )


def _cells(config: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a slice with the options of their workloads."""
    cells = [{**cell, "options": config["workloads"][cell["workload"]]} for cell in entry["cells"]]
    return {"cells": cells} if cells else {}


def _baseline_spec(config: Mapping[str, Any], name: str) -> SliceSpec:
    entry = config["baseline"]
    return SliceSpec(
        stage="baseline",
        name=name,
        reference=entry["reference"],
        shared={},
        candidates=_candidates(entry),
        workloads={
            "load": config["workloads"][entry["load_workload"]],
            "single": config["workloads"][entry["latency_workload"]],
        },
        repeats=config["repeats"],
        quality_tier=entry["quality_tier"],
        **common_values(config),
    )


def _serving_spec(config: Mapping[str, Any], name: str) -> SliceSpec:
    """Return the load sweep: one candidate, what was chosen so far, at rates among the options."""
    entry = dict(config["serving"])
    return SliceSpec(
        stage="serving",
        name=name,
        reference="chosen",
        shared={},
        candidates={"chosen": {}},
        workloads={"load": config["workloads"][entry.pop("workload")]},
        load="open",
        repeats=1,
        criterion="goodput",
        options=entry,
        **common_values(config),
    )


def _power_spec(config: Mapping[str, Any], name: str) -> SliceSpec:
    """Return a question about power; its candidates depend on the machine that is found."""
    entry = dict(config["power"][name])
    workload = config["workloads"][entry.pop("workload")]
    candidates = _candidates(entry) if "candidates" in entry else {}
    entry.pop("candidates", None)
    return SliceSpec(
        stage="power",
        name=name,
        reference=next(iter(candidates), ""),
        shared={},
        candidates=candidates,
        workloads={"load": workload},
        repeats=entry.pop("repeats", None) or config["repeats"],
        slo_limits=tuple(entry.pop("slo_limits", ())),
        decides=name == "threads",
        options=entry,
        **common_values(config),
    )


def common_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a slice that every stage takes from the configuration alike."""
    keys = ("model", "slo", "models_file", "energy")
    return {"base": config["engine"], "seeds": (config["seed"],), **{k: config[k] for k in keys}}


def _candidates(entry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {c["slug"]: c["engine"] for c in entry["candidates"]}
