"""Recorded counters: written on a machine that has them, replayed where there are none.

The file is CSV: one line per reading with the time in seconds and the count of every domain in
microjoules; the header names the domains, as ``package-0:262143328850`` with the range where the
counter wraps around. A recorded counter behaves like the one it was recorded from, and a test of a
wrap-around or a reset needs no such hardware.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infopt.energy.counters import Counter
from infopt.errors import MeasurementError


@dataclass(slots=True)
class Recording:
    """Readings of several counters and a clock that goes with them.

    Attributes:
        times_s: Time of each reading.
        counts_uj: By domain, the count at each reading.
        wraps_uj: By domain, the range; None where it does not wrap.
        position: The reading that is current.
    """

    times_s: list[float]
    counts_uj: dict[str, list[int]]
    wraps_uj: dict[str, int | None]
    position: int = 0

    @classmethod
    def read(cls, path: str | Path) -> Recording:
        """Read a file.

        Raises:
            MeasurementError: It is absent or not such a file; names the line.
        """
        try:
            rows = list(csv.reader(Path(path).read_text("utf-8").splitlines()))
        except (OSError, ValueError) as error:
            raise MeasurementError(f"{path} cannot be read: {error}.", field="path") from error
        if len(rows) < 2 or rows[0][:1] != ["time_s"]:
            raise MeasurementError(f"{path} is no recording of counters.", field="path")
        names = [entry.partition(":") for entry in rows[0][1:]]
        times, columns = [], [[] for _ in names]
        for line, row in enumerate(rows[1:], start=2):
            try:
                times.append(float(row[0]))
                for column, value in zip(columns, row[1:], strict=True):
                    column.append(int(value))
            except (ValueError, IndexError) as error:
                raise MeasurementError(f"{path}, line {line}: {error}.", value=row) from error
        counts = {name: column for (name, _, _), column in zip(names, columns, strict=True)}
        wraps = {name: int(wrap) if wrap else None for name, _, wrap in names}
        return cls(times, counts, wraps)

    def now(self) -> float:
        """Return the time of the current reading."""
        return self.times_s[self.position]

    def advance(self) -> None:
        """Go on to the next reading.

        Raises:
            MeasurementError: There is none.
        """
        if self.position + 1 >= len(self.times_s):
            raise MeasurementError("The recording has ended.", field="position")
        self.position += 1

    def counters(self, update_s: float = 0.001) -> list[RecordedCounter]:
        """Return a counter per domain."""
        return [RecordedCounter(self, name, update_s) for name in self.counts_uj]


@dataclass(frozen=True, slots=True)
class RecordedCounter:
    """A counter of a recording.

    Attributes:
        recording: Where its counts are.
        name: Domain.
        update_s: How often the device renewed it.
    """

    recording: Recording = field(repr=False)
    name: str
    update_s: float = 0.001

    @property
    def wrap_uj(self) -> int | None:
        """Range of the counter."""
        return self.recording.wraps_uj[self.name]

    def read_uj(self) -> int:
        """Return the count at the current reading."""
        return self.recording.counts_uj[self.name][self.recording.position]


def write_recording(
    path: str | Path,
    counters: Sequence[Counter],
    readings: Sequence[tuple[float, Sequence[int]]],
) -> None:
    """Write readings of counters: (seconds, one count per counter)."""
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        names = [f"{c.name}:{c.wrap_uj}" if c.wrap_uj else c.name for c in counters]
        writer.writerow(["time_s", *names])
        writer.writerows([seconds, *counts] for seconds, counts in readings)
