"""Why a run won or lost against its reference: counted work and the machine's bound, in sentences.

The roofline section of a record holds the bytes and FLOPs of all its steps and the least time they
can take. The ratio of two such bounds is what the counted work predicts for the paired ratio of
speeds. Where prediction and measurement are further apart than ``EXPLAINED_WITHIN``, or on
different sides of 1, the answer is "unexplained", with what is known about the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infopt.errors import ConfigError
from infopt.results.record import RunRecord
from infopt.results.table import flatten_record
from infopt.select.explain_words import (
    Ratios,
    is_equal,
    own_sentences,
    reference_of,
    reference_sentences,
)
from infopt.select.rows import Row, number, rows_of, text

if TYPE_CHECKING:
    import pandas as pd

EXPLAINED_WITHIN = 1.25
"""Measured and predicted ratio may differ by this factor; both bounds leave out activations and
overhead, and a run reaches another share of its bound than its reference."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the roofline says about a run.

    Attributes:
        run: ``stage/slug``.
        regime: What limited it; None without a roofline.
        num_bytes: Bytes that its steps had to move.
        flops: Floating-point operations of its steps.
        predicted_s: Least time for them on this machine, in seconds.
        measured_s: Time that its steps took.
        slowdown: Measured / predicted time.
        reference: ``stage/slug`` of the run it was compared with; None for a reference.
        measured_ratio: Speed over the reference's, measured.
        predicted_ratio: The same as the counted work predicts it.
        is_paired: Whether the measured ratio comes from pairs (else from the times of steps).
        status: ``explained``, ``unexplained``, ``undecided`` (nothing to explain), or ``alone``
            (no reference, or no roofline of it).
        sentences: All of it in words.
    """

    run: str
    regime: str | None
    num_bytes: float | None
    flops: float | None
    predicted_s: float | None
    measured_s: float | None
    slowdown: float | None
    reference: str | None
    measured_ratio: float | None
    predicted_ratio: float | None
    is_paired: bool
    status: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        """All sentences in one paragraph."""
        return " ".join(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "sentences": list(self.sentences)
        }


def explain_record(
    record: RunRecord, reference: RunRecord | None = None, *, within: float = EXPLAINED_WITHIN
) -> Explanation:
    """Explain one record (see ``explain_row``)."""
    base = None if reference is None else flatten_record(reference)
    return explain_row(flatten_record(record), base, within=within)


def explain_row(
    row: Row, reference: Row | None = None, *, within: float = EXPLAINED_WITHIN
) -> Explanation:
    """Explain one row of the results table.

    Args:
        row: The run.
        reference: The run that its comparison names; None where there is none.
        within: Factor by which measured and predicted ratio may differ, above 1.

    Raises:
        ConfigError: ``within`` is not above 1.
    """
    if not within > 1:
        raise ConfigError(f"within must be above 1, got {within!r}.", field="within", value=within)
    predicted, measured = (number(row, f"roofline.{k}_s") for k in ("predicted", "measured"))
    slowdown = measured / predicted if measured and predicted else None
    ratios = Ratios.of(row, reference)
    status = _status(row, ratios, within)
    return Explanation(
        run=str(row["run"]),
        regime=text(row, "roofline.regime"),
        num_bytes=number(row, "roofline.bytes"),
        flops=number(row, "roofline.flops"),
        predicted_s=predicted,
        measured_s=measured,
        slowdown=slowdown,
        reference=reference_of(row),
        measured_ratio=ratios.measured,
        predicted_ratio=ratios.predicted,
        is_paired=ratios.is_paired,
        status=status,
        sentences=(
            *own_sentences(row, slowdown),
            *reference_sentences(row, reference, ratios, status, within),
        ),
    )


def add_explanations(table: pd.DataFrame, *, within: float = EXPLAINED_WITHIN) -> pd.DataFrame:
    """Return a results table with ``explanation``, ``explanation.status`` and ``.predicted_ratio``.

    Args:
        table: From ``load_results``; a run's reference is looked up in it.
        within: See ``explain_row``.
    """
    rows = rows_of(table)
    # Names repeat where a table holds several machines; a reference is of the same one.
    by_name = {(row.get("hardware_id"), row["run"]): row for row in rows}
    found = [
        explain_row(row, by_name.get((row.get("hardware_id"), reference_of(row))), within=within)
        for row in rows
    ]
    return table.assign(
        **{
            "explanation": [e.text for e in found],
            "explanation.status": [e.status for e in found],
            "explanation.predicted_ratio": [e.predicted_ratio for e in found],
        }
    )


def _status(row: Row, ratios: Ratios, within: float) -> str:
    measured, predicted = ratios.measured, ratios.predicted
    if measured is None or predicted is None:
        return "alone"
    is_close = abs(math.log(measured / predicted)) <= math.log(within)
    if ratios.verdict == "undecided":
        return "undecided" if is_close else "unexplained"
    if not ratios.is_paired and is_equal(measured) and is_close:
        return "undecided"
    is_same_side = (measured > 1) == (predicted > 1) and not is_equal(predicted)
    return "explained" if is_close and is_same_side else "unexplained"
