"""The manifest of a slice: what its job measured, when, and on which device."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from infopt.experiments.devices import Device, measuring_device
from infopt.experiments.slice_spec import SliceSpec


def utc_now() -> str:
    """Return the time, as records write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Job:
    """A job that measures.

    Attributes:
        device: What it measures on.
        start_s: When it began to wait for the device, on the monotonic clock.
        started: When it got the device.
        ended: When it gave the device back.
    """

    device: Device
    start_s: float = field(default_factory=time.perf_counter)
    started: str = field(default_factory=utc_now)
    ended: str = ""

    def manifest(
        self,
        spec: SliceSpec,
        records: Iterable[str],
        candidates: Iterable[str],
        *,
        num_resumed: int = 0,
        **more: Any,
    ) -> dict[str, Any]:
        """Return the manifest of a slice.

        Args:
            spec: What was asked for.
            records: Names of the records.
            candidates: Those that were measured.
            num_resumed: Records that an earlier attempt had finished.
            **more: What this kind of slice adds.
        """
        return {
            "stage": spec.stage,
            "slice": spec.name,
            "records": list(records),
            "reference": spec.reference,
            "candidates": {slug: dict(spec.candidates[slug]) for slug in candidates},
            **more,
            "device": self.device.name,
            "waited_s": round(self.device.waited_s, 3),
            "started": self.started,
            "ended": self.ended or utc_now(),
            "num_resumed": num_resumed,
            "duration_s": round(time.perf_counter() - self.start_s, 3),
        }


@contextmanager
def measuring_job() -> Iterator[Job]:
    """Wait for a device nobody measures on, and keep it for the ``with`` block."""
    start_s = time.perf_counter()
    with measuring_device() as device:
        job = Job(device, start_s)
        yield job
        job.ended = utc_now()
