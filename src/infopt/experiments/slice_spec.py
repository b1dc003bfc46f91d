"""`SliceSpec`: everything that decides the numbers of one job, as plain data.

The specification travels from the configuration through a rule's ``params`` into the job as one
JSON text with sorted keys. So it is also what Snakemake compares to decide whether the job has to
run again: it holds no time, no path of a temporary file and no order of a set.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from infopt.config import EngineConfig
from infopt.errors import check_known_keys

Load = Literal["closed", "open"]

SELECT_OPTIONS = ("search", "static", "loads", "judged")
"""Options of the last stage's slices (see `infopt.experiments.select_spec`)."""

MEASURES = (
    "long_text",
    "capacity",
    "context_curve",
    "sharing",
    "batch_curve",
    "random_models",
    "expert_load",
    "routing",
)
"""What a slice can measure beside its load (see `infopt.experiments.kv_cache` and `.moe`)."""

MAX_NAME_BYTES = 150
"""Longest record name; file names built from it stay below 255 bytes."""


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """One question: candidates, a reference, and what they serve.

    Attributes:
        stage: Stage of the pipeline.
        name: Name of the slice.
        model: Model of all candidates.
        reference: Slug of the candidate that the others are paired with.
        base: Engine options of the whole pipeline and what earlier stages chose.
        shared: Engine options of this slice; they win over ``base``.
        candidates: Engine options by slug: the choice itself; they win over both.
        workloads: Workload definitions by role (``load``, and ``single`` for latency alone).
        load: Whether requests come all at once or when the workload says.
        repeats: Pairs behind each comparison.
        seeds: Seeds of the workload; repeats go through them in turn.
        criterion: What decides between candidates (an objective of `infopt.select`).
        slo: Service-level objective (preset or limits); empty where nothing depends on it.
        slo_limits: Limits that a candidate has to keep to be chosen.
        quality_tier: Quality suite to run; None for none.
        models_file: File with further registry entries.
        quality_reference: Engine options of the model that quality is judged against; None: the
            slice's reference.
        measure_steps: Time single steps by size.
        decides: Whether the winner is handed on; a slice can also only explain.
        options: Further options of the stage (those of ``serving`` and ``power``, what a slice of
            ``kv_cache`` or ``moe`` measures beside its load, the search of ``select``, candidates'
            own ``loads``).
        energy: How energy is measured (the configuration's ``energy``).
        prefers: Candidate that is taken where it cannot be told from the best.
    """

    stage: str
    name: str
    model: str
    reference: str
    base: Mapping[str, Any]
    shared: Mapping[str, Any]
    candidates: Mapping[str, Mapping[str, Any]]
    workloads: Mapping[str, Mapping[str, Any]]
    load: Load = "closed"
    repeats: int = 6
    seeds: tuple[int, ...] = (0,)
    criterion: str = "throughput"
    slo: str | Mapping[str, Any] = field(default_factory=dict)
    slo_limits: tuple[str, ...] = ()
    quality_tier: Literal["screen", "full"] | None = None
    models_file: str | None = None
    quality_reference: Mapping[str, Any] | None = None
    measure_steps: bool = False
    decides: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    energy: Mapping[str, Any] = field(default_factory=dict)
    prefers: str | None = None

    def to_json(self) -> str:
        """Return one line of JSON, the same for the same specification.

        Keys are sorted, so that a reordered configuration file is no change; candidates are a list,
        because their order is the one in which they are measured and shown.
        """
        values = dataclasses.asdict(self)
        values["candidates"] = [[slug, options] for slug, options in self.candidates.items()]
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> SliceSpec:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: An unknown key.
        """
        values = json.loads(text)
        check_known_keys(values, [f.name for f in dataclasses.fields(cls)], "a slice")
        candidates = dict(values.pop("candidates"))
        lists = {k: tuple(v) for k, v in values.items() if isinstance(v, list)}
        return cls(**{**values, **lists, "candidates": candidates})

    def engine_config(self, slug: str, *, num_threads: int | None = None) -> EngineConfig:
        """Return the engine configuration of a candidate.

        Args:
            slug: The candidate.
            num_threads: Threads that the job may use; options that ask for fewer get those.
        """
        options = merged(self.base, self.shared, self.candidates[slug])
        if num_threads is not None:
            options["num_threads"] = min(num_threads, options.get("num_threads") or num_threads)
        return EngineConfig.from_dict({"model": self.model, **options})

    @property
    def measures_quality(self) -> bool:
        """Whether its records have a quality that a floor can be held to."""
        return self.quality_tier is not None or "long_text" in self.options

    def with_model(self, model: str) -> SliceSpec:
        """Return a copy for another model."""
        return dataclasses.replace(self, model=model)

    def judge_config(self) -> EngineConfig:
        """Return the engine configuration of the model that quality is judged against."""
        options = merged(self.base, self.shared, self.quality_reference or {})
        return EngineConfig.from_dict({"model": self.model, **options})

    def inherit(self, options: Mapping[str, Any]) -> SliceSpec:
        """Return a copy whose candidates start from what an earlier stage chose."""
        return dataclasses.replace(self, base=merged(self.base, options))

    def describe(self) -> dict[str, str]:
        """Return the settings in words, for captions."""
        return {
            "model": self.model,
            "reference": self.reference,
            "candidates": ", ".join(self.candidates),
            "workload": _words(self.workloads["load"]),
            "load": "all at once" if self.load == "closed" else "as they arrive",
            "repeats": str(self.repeats),
        }

    def load_of(self, slug: str) -> dict[str, Any]:
        """Return ``rate_per_s`` and ``fill`` of a candidate's own load, else nothing."""
        return dict(self.options.get("loads", {}).get(slug, {}))

    def record_slug(self, slug: str) -> str:
        """Return the record's name within its stage: ``<slice>.<slug>``."""
        return short_name(f"{self.name}.{slug}")

    def workload(self) -> dict[str, Any]:
        """Return what a record says about the work: everything but the engine's options."""
        judge = self.quality_reference
        return {
            "slice": self.name,
            "reference": self.record_slug(self.reference),
            "load": self.load,
            "repeats": self.repeats,
            "criterion": self.criterion,
            "quality_tier": self.quality_tier,
            **({"quality_reference": dict(judge)} if judge else {}),
            **({} if is_default_energy(self.energy) else {"energy": dict(self.energy)}),
            **({"cells": self.options["cells"]} if self.options.get("cells") else {}),
            **{key: self.options[key] for key in MEASURES if key in self.options},
            **self._judged_by_slo(),
            **{f"{key}_workload": dict(spec) for key, spec in self.workloads.items()},
        }

    def _judged_by_slo(self) -> dict[str, Any]:
        """Return what depends on the objective: loads that were made for it, and goodput."""
        found = {key: self.options[key] for key in SELECT_OPTIONS if key in self.options}
        is_judged = found or (self.criterion == "goodput" and self.stage != "serving")
        return found | {"slo": self.slo} if is_judged else {}


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return engine options of which later ones hold.

    How weights are calibrated belongs to their format: where a later part has another
    ``quantization``, the ``calibration`` of an earlier one goes with the format it was for.
    """
    options: dict[str, Any] = {}
    for part in parts:
        if "quantization" in part:
            options.pop("calibration", None)
        options |= part
    return options


def is_default_energy(options: Mapping[str, Any]) -> bool:
    """Tell whether energy is measured in the default way, so that records need not mention it."""
    return options.get("meter", "auto") == "auto" and not options.get("constants")


def _words(options: Mapping[str, Any]) -> str:
    """Return options as ``key value, key value``."""
    parts = [
        f"{key} ({_words(value)})" if isinstance(value, Mapping) else f"{key} {value}"
        for key, value in options.items()
    ]
    return ", ".join(parts).replace("_", " ")


def short_name(name: str) -> str:
    """Return a file name of at most ``MAX_NAME_BYTES``, long ones with a hash of the whole."""
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name.encode()[: MAX_NAME_BYTES - 11].decode(errors='ignore')}-{digest}"
