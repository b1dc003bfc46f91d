"""Runs one slice: each candidate against the reference, a record for each, whatever happens.

How a job survives being killed. Snakemake deletes the outputs of a job before it starts and when it
fails, so records that were declared outputs would be lost with it, hours of measuring included.
Here the records are a cache that the job itself keeps: one file per candidate, written atomically
as soon as the candidate is done, and taken over by the next attempt if machine, code, libraries,
configuration, workload and seeds are the same (``finished_record``). The declared output is the
slice's manifest, which lists the records. It is written last, in one piece, and only when every
candidate has succeeded. So a half-finished slice never counts as complete, and never starts over.

A candidate that fails leaves a record with ``status: failed`` and the reason; the others still run;
then the job fails. Its next attempt runs only what failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infopt.bench.load_result import LoadResult
from infopt.bench.paired import run_paired
from infopt.bench.request_samples import PARTNER, samples_of_requests
from infopt.errors import ConfigError, MeasurementError, WeightFormatError
from infopt.experiments.manifest import measuring_job, utc_now
from infopt.experiments.sections import comparison_section
from infopt.experiments.slice_run import Contestant, Probe, SliceRun
from infopt.experiments.slice_spec import SliceSpec
from infopt.results import RunDraft, RunRecord, finished_record, record_run, write_json
from infopt.select.objectives import get_objective

logger = logging.getLogger(__name__)

_OF_THE_MODEL = ("kv_cache_dtype", "kv_eviction")


def run_slice(
    spec: SliceSpec,
    results_dir: str | Path,
    *,
    num_threads: int | None = None,
    probes: Sequence[Probe] = (),
    kind: type[SliceRun] = SliceRun,
) -> dict[str, Any]:
    """Run what is missing of a slice.

    Args:
        spec: What to measure.
        results_dir: Folder of all results.
        num_threads: Compute threads; default is all this process may use.
        probes: Further measurements per candidate.
        kind: How candidates are loaded and what is read off their runs.

    Returns:
        The manifest: names of the records, the candidates' options, what was left out because the
        model does not come in its format, duration, and how many records were taken over.

    Raises:
        MeasurementError: Some candidates failed; all others have run and have their records.
    """
    with measuring_job() as job:
        run = kind(spec, Path(results_dir), job.device, num_threads, probes)
        _take_over(run)
        num_resumed = len(run.records)
        missing = [slug for slug in spec.candidates if slug not in run.records]
        if missing:
            _measure(run, missing)
    if run.failures:
        raise _failure(run)
    measured = [slug for slug in spec.candidates if slug in run.records]
    names = [run.records[slug].slug for slug in measured]
    return job.manifest(spec, names, measured, num_resumed=num_resumed, left_out=run.left_out)


def write_manifest(manifest: dict[str, Any], path: str | Path) -> None:
    """Write the declared output of a slice."""
    write_json(path, manifest)


def _take_over(run: SliceRun) -> None:
    """Find the records that an earlier attempt finished."""
    for slug in run.spec.candidates:
        record = finished_record(**run.identity(slug))
        if record is not None:
            run.records[slug] = record
            run.report(slug, "already measured")


def _measure(run: SliceRun, missing: Sequence[str]) -> None:
    reference = run.spec.reference
    try:
        arm = run.open_arm(reference)
    except Exception as error:
        # Nothing can be compared without the reference: each candidate's record says why.
        for slug in missing:
            _record_failure(run, slug, error)
        return
    with arm:
        for slug in missing:
            if slug != reference:
                _measure_candidate(run, arm, slug)
        if reference not in run.records:
            _measure_reference(run, arm)


def _measure_candidate(run: SliceRun, reference: Contestant, slug: str) -> None:
    start_s, started = time.perf_counter(), utc_now()
    try:
        with record_run(**run.identity(slug)) as draft:
            with run.open_arm(slug) as arm:
                first, second = _alternate(reference, arm, run.spec.repeats)
                _fill(run, draft, arm, second, reference)
                if run.slo is not None:
                    draft.samples = {**(draft.samples or {}), **samples_of_requests(first, PARTNER)}
            draft.comparison = comparison_section(
                first, second, run.slo, run.spec.record_slug(reference.slug)
            )
    except ConfigError as error:
        if not is_left_out(error):
            _fail(run, slug, error)
            return
        run.left_out[slug] = error.message
        run.report(slug, f"left out: {error.message}")
        return
    except Exception as error:
        _fail(run, slug, error)
        return
    assert draft.record is not None
    run.records[slug] = draft.record
    run.report(slug, _headline(draft.record, run.spec.criterion))
    if reference.slug not in run.records:
        # Its runs beside the first candidate are the reference's own numbers.
        _record_reference(run, reference, first, started, time.perf_counter() - start_s)


def _fail(run: SliceRun, slug: str, error: Exception) -> None:
    logger.error("%s failed", run.spec.record_slug(slug), exc_info=error)
    run.failures[slug] = error
    run.report(slug, f"failed: {error}")


def is_left_out(error: ConfigError) -> bool:
    """Whether a candidate is a question that this model does not have.

    A weight format that it does not come in, or a compression of keys and values that its layers do
    not allow. Names of options have been checked before anything ran.
    """
    return isinstance(error, WeightFormatError) or error.field in _OF_THE_MODEL


def _measure_reference(run: SliceRun, reference: Contestant) -> None:
    """Measure a reference that no successful pair has measured."""
    start_s, started = time.perf_counter(), utc_now()
    reference.results.clear()
    try:
        for _ in range(run.spec.repeats + 1):
            reference.run()
        results = reference.results[1:]
        _record_reference(run, reference, results, started, time.perf_counter() - start_s)
    except Exception as error:
        logger.exception("%s failed", run.spec.record_slug(reference.slug))
        _record_failure(run, reference.slug, error)


def _record_reference(
    run: SliceRun,
    reference: Contestant,
    results: list[LoadResult],
    started: str,
    duration_s: float,
) -> None:
    try:
        with record_run(**run.identity(reference.slug)) as draft:
            _fill(run, draft, reference, results, None)
    except Exception as error:
        logger.exception("%s failed", run.spec.record_slug(reference.slug))
        run.failures[reference.slug] = error
        return
    assert draft.record is not None
    record = draft.record.replace(started=started, duration_s=round(duration_s, 6))
    record.write(run.results_dir)
    run.records[reference.slug] = record
    run.report(reference.slug, _headline(record, run.spec.criterion))


def _record_failure(run: SliceRun, slug: str, error: Exception) -> None:
    try:
        with record_run(**run.identity(slug)):
            raise error
    except Exception as caught:
        run.failures[slug] = caught
        run.report(slug, f"failed: {caught}")


def _alternate(
    reference: Contestant, candidate: Contestant, repeats: int
) -> tuple[list[LoadResult], list[LoadResult]]:
    """Let both arms take turns and return their runs, warm-up left out."""
    reference.results.clear()
    arms = {"reference": reference.run, "candidate": candidate.run}
    run_paired(arms, "reference", repeats)
    return reference.results[-repeats:], candidate.results[-repeats:]


def _fill(
    run: SliceRun,
    draft: RunDraft,
    arm: Contestant,
    results: list[LoadResult],
    reference: Contestant | None,
) -> None:
    sections = run.sections(arm, results, reference)
    if sections["energy"]["source"] is not None:
        sections["energy"]["idle_watts"] = run.idle_watts
    sections["extra"] |= {
        "device": run.device.name,
        "slice": run.spec.name,
        "candidate": arm.slug,
        "position": list(run.spec.candidates).index(arm.slug),
    }
    for name, section in sections.items():
        setattr(draft, name, section)


def _headline(record: RunRecord, criterion: str) -> str:
    throughput = (record.throughput or {}).get("output_tokens_per_s")
    text = f"{throughput:.1f} tokens/s" if throughput is not None else "done"
    name = get_objective(criterion).paired or ""
    ratio = (record.comparison or {}).get(name)
    if ratio is None:
        return text
    low, high = ratio["low"], ratio["high"]
    return f"{text}, {name} x{ratio['median']:.2f} [{low:.2f}, {high:.2f}] {ratio['verdict']}"


def _failure(run: SliceRun) -> MeasurementError:
    names = ", ".join(run.spec.record_slug(slug) for slug in run.failures)
    first = next(iter(run.failures.values()))
    return MeasurementError(
        f"{len(run.failures)} of {len(run.spec.candidates)} runs of {run.spec.stage}/"
        f"{run.spec.name} failed: {names}. The first: {first}",
        field=f"{run.spec.stage}.{run.spec.name}",
        value=list(run.failures),
        remedy="Their records say why; fix or remove these candidates and run again.",
    )
