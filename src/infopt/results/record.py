"""`RunRecord`: everything one run was and gave, as one schema-checked JSON file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from infopt.config import EngineConfig
from infopt.errors import ConfigError, ResultError
from infopt.results.files import read_json, write_json
from infopt.results.plain import to_plain
from infopt.results.slug import check_slug
from infopt.schemas import validate

SCHEMA_VERSION = 1
SCHEMA = "run_record"

Section = Mapping[str, Any]

NO_ENERGY: Section = {
    "j_per_token": None,
    "j_per_request": None,
    "source": None,
    "reason": "energy was not measured in this run",
}
NO_COST: Section = {
    "per_million_output_tokens": None,
    "per_request": None,
    "per_machine_hour": None,
    "currency": None,
    "reason": "no price is configured",
}

IDENTITY_FIELDS = (
    "stage",
    "slug",
    "config",
    "workload",
    "commit",
    "versions",
    "hardware",
    "seeds",
    "started",
    "duration_s",
    "status",
    "failure",
)
SECTIONS = (
    "quality",
    "latency",
    "throughput",
    "slo",
    "memory",
    "energy",
    "cost",
    "roofline",
    "comparison",
    "intervals",
    "ops",
    "samples",
    "extra",
)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. The schema ``run_record`` describes every key of every section.

    Attributes:
        stage: Stage of the pipeline.
        slug: Name of the run within the stage (see ``make_slug``).
        config: Full ``EngineConfig`` as plain data; None where another engine ran.
        commit: What ``code_identity()`` returned.
        versions: What ``library_versions()`` returned.
        hardware: Fingerprint of the machine.
        seeds: Every seed used.
        started: UTC, ISO 8601.
        duration_s: Wall time.
        status: ``failed`` records hold identity and failure only.
        failure: type, message, field and remedy of the error.
        workload: Name and parameters of what was served.
        quality, latency, throughput, slo, memory, energy, cost, roofline, ops: The numbers; None
            where a section does not apply.
        comparison: Paired ratios against a reference run, by metric.
        intervals: 95 % intervals by the dotted name of the number.
        samples: Raw samples by name.
        extra: Flat further values of a stage.
    """

    stage: str
    slug: str
    config: Section | None
    commit: str
    versions: Mapping[str, str | None]
    hardware: Section
    seeds: tuple[int, ...]
    started: str
    duration_s: float
    status: Literal["ok", "failed"] = "ok"
    failure: Section | None = None
    workload: Section | None = None
    quality: Section | None = None
    latency: Section | None = None
    throughput: Section | None = None
    slo: Section | None = None
    memory: Section | None = None
    energy: Section = field(default_factory=lambda: dict(NO_ENERGY))
    cost: Section = field(default_factory=lambda: dict(NO_COST))
    roofline: Section | None = None
    comparison: Section | None = None
    intervals: Section | None = None
    ops: Section | None = None
    samples: Section | None = None
    extra: Section = field(default_factory=dict)

    @property
    def run(self) -> str:
        """``stage/slug``, the name of the run across stages."""
        return f"{self.stage}/{self.slug}"

    def path(self, results_dir: str | Path = "results") -> Path:
        """Return where the record lives: ``<results_dir>/runs/<stage>/<slug>.json``."""
        return record_path(self.stage, self.slug, results_dir)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document (not yet checked against the schema)."""
        document: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        document["identity"] = {
            name: to_plain(getattr(self, name), f"identity.{name}") for name in IDENTITY_FIELDS
        }
        for name in SECTIONS:
            document[name] = to_plain(getattr(self, name), name)
        return document

    @classmethod
    def from_dict(cls, document: object, *, where: str = "record") -> RunRecord:
        """Build a record from a JSON document, checking every key.

        Args:
            document: What ``to_dict`` returned.
            where: File name for messages.

        Raises:
            ResultError: Names file and field.
        """
        check_document(document, where)
        assert isinstance(document, dict)
        sections = {name: document[name] for name in SECTIONS}
        identity = dict(document["identity"])
        identity["seeds"] = tuple(identity["seeds"])
        return cls(**identity, **sections)

    def write(self, results_dir: str | Path = "results") -> Path:
        """Check the record and write it atomically.

        Raises:
            ResultError: A value is NaN or infinite, a key unknown, or a slug invalid.
        """
        check_slug(self.slug, self.stage)
        document = self.to_dict()
        check_document(document, f"Record {self.run}")
        return write_json(self.path(results_dir), document)

    @classmethod
    def read(cls, path: str | Path) -> RunRecord:
        """Read and check one record.

        Raises:
            ResultError: Names the file, and the field where it does not match the schema.
        """
        return cls.from_dict(read_json(path), where=str(path))

    def engine_config(self) -> EngineConfig | None:
        """Return the configuration that ran, or None where another engine ran."""
        return None if self.config is None else EngineConfig.from_dict(self.config)

    def replace(self, **changes: Any) -> RunRecord:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def _repr_html_(self) -> str:
        from infopt.results.html import record_html

        return record_html(self)


def record_path(stage: str, slug: str, results_dir: str | Path = "results") -> Path:
    """Return the file of a run, having checked its name."""
    check_slug(slug, stage)
    return Path(results_dir, "runs", stage, f"{slug}.json")


def check_document(document: object, where: str) -> None:
    """Check a JSON document against the schema and its config against ``EngineConfig``.

    Raises:
        ResultError: Names file and field.
    """
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise ResultError(
            f"{where} has schema version {version}; this infopt reads version {SCHEMA_VERSION}.",
            field="schema_version",
            value=version,
            remedy="Run the step again, or read it with the infopt release that wrote it.",
        )
    validate(document, SCHEMA, where=where)
    assert isinstance(document, dict)
    config = document["identity"]["config"]
    if config is None:
        return
    try:
        EngineConfig.from_dict(config)
    except ConfigError as error:
        field_name = f"identity.config.{error.field}" if error.field else "identity.config"
        raise ResultError(
            f"{where}: {error.message}", field=field_name, value=error.value, remedy=error.remedy
        ) from error
