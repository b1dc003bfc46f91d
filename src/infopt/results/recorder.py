"""Runs leave a record whatever happens: numbers when they end, the reason when they fail."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infopt.config import EngineConfig
from infopt.errors import InfoptError, ResultError
from infopt.results.identity import code_identity, library_versions
from infopt.results.record import NO_COST, NO_ENERGY, RunRecord, Section, record_path


@dataclass(slots=True)
class RunDraft:
    """What a run fills in while it measures; a misspelt section is an ``AttributeError``.

    After the ``with`` block ``record`` holds what was written and ``path`` where.
    """

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
    extra: dict[str, Any] = field(default_factory=dict)
    record: RunRecord | None = field(default=None, init=False)
    path: Path | None = field(default=None, init=False)

    def sections(self) -> dict[str, Any]:
        """Return the sections by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}


@contextmanager
def record_run(
    stage: str,
    slug: str,
    config: EngineConfig | Mapping[str, Any] | None,
    *,
    hardware: Section,
    seeds: Sequence[int] = (),
    workload: Section | None = None,
    results_dir: str | Path = "results",
) -> Iterator[RunDraft]:
    """Write one record for what happens in the ``with`` block.

    >>> with record_run("batching", slug, config, hardware=fingerprint(), seeds=[0]) as run:
    ...     run.throughput = {"output_tokens_per_s": 410.0}

    An exception gives a record with ``status: failed`` and its reason, and goes on to the caller.
    An interrupt (Ctrl-C, exit) gives none: nothing was learned about the configuration.

    Args:
        stage: Stage of the pipeline.
        slug: Name of the run (see ``make_slug``).
        config: What runs; None for another engine.
        hardware: Fingerprint of the machine.
        seeds: All seeds used.
        workload: Name and parameters of what is served.
        results_dir: Folder of all results.

    Raises:
        ResultError: The numbers do not fit the schema; the record on disk is then a failed one.
    """
    record_path(stage, slug, results_dir)  # refuse a bad name before hours of measuring
    draft = RunDraft()
    plain_config = config.to_dict() if isinstance(config, EngineConfig) else config
    started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    start_s = time.perf_counter()

    def finish(**result: Any) -> None:
        record = RunRecord(
            stage=stage,
            slug=slug,
            config=plain_config,
            commit=code_identity(),
            versions=library_versions(),
            hardware=hardware,
            seeds=tuple(seeds),
            started=started,
            duration_s=round(time.perf_counter() - start_s, 6),
            workload=workload,
            **result,
        )
        draft.path = record.write(results_dir)
        draft.record = record

    try:
        yield draft
        finish(**draft.sections())
    except Exception as error:
        try:
            finish(status="failed", failure=describe_failure(error))
        except (ResultError, OSError) as unwritable:
            # A bad identity or a full disk: the first error is still the one to report.
            error.add_note(f"No record could be written: {unwritable}")
        raise


def describe_failure(error: BaseException) -> dict[str, str | None]:
    """Return type, message, field and remedy of an error, as the record holds them."""
    known = isinstance(error, InfoptError)
    return {
        "type": type(error).__name__,
        "message": error.message if known else str(error),
        "field": error.field if known else None,
        "remedy": error.remedy if known else None,
    }


def finished_record(
    stage: str,
    slug: str,
    config: EngineConfig | Mapping[str, Any] | None,
    *,
    hardware: Section,
    seeds: Sequence[int] = (),
    workload: Section | None = None,
    results_dir: str | Path = "results",
) -> RunRecord | None:
    """Return the record of an earlier run that need not be repeated, or None.

    It must have ended well, on this machine, with this code, these libraries and the same
    configuration, workload and seeds. This is how a killed stage resumes: record by record.
    """
    path = record_path(stage, slug, results_dir)
    if not path.is_file():
        return None
    try:
        record = RunRecord.read(path)
    except ResultError:  # from another schema version or broken: it is written anew
        return None
    wanted = RunRecord(
        stage=stage,
        slug=slug,
        config=config.to_dict() if isinstance(config, EngineConfig) else config,
        commit=code_identity(),
        versions=library_versions(),
        hardware=hardware,
        seeds=tuple(seeds),
        started=record.started,
        duration_s=record.duration_s,
        workload=workload,
    )
    same = record.to_dict()["identity"] == wanted.to_dict()["identity"]
    return record if same else None
