"""Stage `power`: which instance size, how many replicas, and whether to keep a server warm.

Every candidate runs in processes of its own, pinned to its cores, because the number of compute
threads belongs to a process:

* ``threads``: one instance with 1, 2, 4, ... and all cores; decides ``num_threads``.
* ``replicas``: one instance with all cores against several that share them, on the same requests.
* ``cold_start``: starts a process per weight format (`infopt.experiments.power.cold_start`).
* ``caps``: power caps and clocks of a GPU (`infopt.experiments.power.caps`).

What a machine does not have is skipped, and the manifest says why.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infopt.experiments.devices import Device
from infopt.experiments.manifest import Job
from infopt.experiments.power.caps import run_caps
from infopt.experiments.power.cold_start import run_cold_start
from infopt.experiments.power.fleet import FleetRun
from infopt.experiments.power.instance import usable_core_ids
from infopt.experiments.power.skipping import SkippedError, runs_on_gpu
from infopt.experiments.slice_spec import SliceSpec
from infopt.experiments.slices import run_slice

logger = logging.getLogger(__name__)

THREADS, REPLICAS, COLD_START, CAPS = "threads", "replicas", "cold_start", "caps"


def run(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Run what is missing of the slice and return its manifest.

    ``skipped`` in it is the reason why this machine does not have the question, else None.
    """
    try:
        if spec.name == CAPS:
            found = run_caps(spec, results_dir, num_threads=num_threads)
        elif spec.name == COLD_START:
            found = run_cold_start(spec, results_dir, num_threads=num_threads)
        else:
            sized = with_fleets(spec, len(usable_core_ids(num_threads)))
            found = run_slice(sized, results_dir, num_threads=num_threads, kind=FleetRun)
    except SkippedError as error:
        logger.info("power/%s is skipped: %s", spec.name, error.message)
        return _skipped(spec, error.message)
    return {**found, "skipped": None}


def with_fleets(spec: SliceSpec, num_cores: int) -> SliceSpec:
    """Return the slice with the candidates that a machine of this size has.

    Args:
        spec: ``threads`` or ``replicas``, with ``counts`` among its options.
        num_cores: Cores that the job may use.

    Raises:
        SkippedError: There is nothing to compare here.
    """
    if runs_on_gpu(spec):
        raise SkippedError("the model runs on a GPU: its speed does not follow the CPU's threads")
    make = _thread_fleets if spec.name == THREADS else _replica_fleets
    fleets = make(spec.options["counts"], num_cores)
    if len(fleets) < 2:
        raise SkippedError(f"{num_cores} core{'s' * (num_cores > 1)}: there is nothing to divide")
    reference = next(slug for slug, threads in fleets.items() if threads == [num_cores])
    decides = spec.name == THREADS
    return dataclasses.replace(
        spec,
        candidates={
            slug: {"num_threads": threads[0]} if decides and slug != reference else {}
            for slug, threads in fleets.items()
        },
        reference=reference,
        options={**spec.options, "fleets": fleets},
    )


def _thread_fleets(counts: Sequence[int] | None, num_cores: int) -> dict[str, list[int]]:
    """Return instances by slug: powers of two, or the counts asked for, and all cores."""
    wanted = counts or [2**i for i in range(num_cores.bit_length())]
    sizes = sorted({n for n in wanted if n <= num_cores} | {num_cores})
    return {f"threads-{n}": [n] for n in sizes}


def _replica_fleets(counts: Sequence[int] | None, num_cores: int) -> dict[str, list[int]]:
    """Return one instance with all cores, and several with equal parts of them."""
    wanted = [n for n in counts or [2] if n > 1 and num_cores // n]
    divided = {f"{n}x{num_cores // n}-threads": [num_cores // n] * n for n in wanted}
    return {f"1x{num_cores}-threads": [num_cores], **divided}


def _skipped(spec: SliceSpec, reason: str) -> dict[str, Any]:
    manifest = Job(Device(None)).manifest(spec, [], [], left_out={}, skipped=reason)
    return {**manifest, "reference": None}
