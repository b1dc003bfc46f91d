"""Findings of the quantization notebook: its slices, the floor, and the answer.

The floor and the choice are those of `infopt.select`, so that the notebook and the pipeline cannot
disagree. Other questions have modules of their own beside this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from infopt.experiments.findings.story import CANDIDATE, StageStory, story_parts
from infopt.plotting.data import floats
from infopt.select import QualityFloor, Recommendation, choose, filter_runs
from infopt.select.rows import Row, number, rows_of, text

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "BITS",
    "CALIBRATION",
    "CANDIDATE",
    "FLOAT_TRAINED",
    "IS_LOOSE",
    "IS_STORED",
    "KL",
    "SCHEMES",
    "QuantizationStory",
    "quantization_story",
    "weight_bytes",
]

STAGE = "quantization"
SCHEMES, FLOAT_TRAINED, CALIBRATION = "schemes", "float_trained", "calibration"
BITS, IS_STORED, IS_LOOSE = "extra.bits", "extra.is_stored", "extra.is_dequantized"
KL = "quality.kl_mean"

STORED_BLOCKS = ("q4_1", "q4_1-a8")
"""Schemes that multiply the blocks of the model's file: nothing was rounded for them."""

_FLOAT_BITS = {"float32": 32.0, "bfloat16": 16.0, "float16": 16.0}


@dataclass(frozen=True)
class QuantizationStory(StageStory):
    """The stage's results, with bits per weight."""

    def rows(self, name: str) -> pd.DataFrame:
        """Return the candidates of a slice with ``extra.bits`` and the two marks of a plot.

        Raises:
            ResultError: This run has no such slice.
        """
        return self._prepared[name] if name in self._prepared else self.data.rows(name)

    @cached_property
    def _prepared(self) -> dict[str, pd.DataFrame]:
        return {name: self._with_marks(name) for name in self.slices}

    def _with_marks(self, name: str) -> pd.DataFrame:
        table = self.data.rows(name).copy()
        rows = rows_of(table)
        reference = self.reference_row(name)
        return table.assign(
            **{
                BITS: [self._bits(name, row, reference) for row in rows],
                IS_STORED: [
                    row.get("extra.on_stored_grid") is True
                    or row.get("extra.quantization_scheme") in STORED_BLOCKS
                    for row in rows
                ],
                IS_LOOSE: [
                    "dequantized" in (text(row, "extra.quantization_path") or "") for row in rows
                ],
            }
        )

    def reference(self, name: str = SCHEMES) -> str:
        """Return the name of that candidate."""
        return str(self.reference_row(name)[CANDIDATE])

    @property
    def unrounded(self) -> str:
        """Name of the schemes' reference, with the type that it computes in: ``none (float32)``."""
        formats = text(self.reference_row(SCHEMES), "extra.quantization_formats") or ""
        kind = formats.rpartition(" ")[2]
        return f"{self.reference()} ({kind})" if kind in _FLOAT_BITS else self.reference()

    @cached_property
    def marked(self) -> pd.DataFrame:
        """The schemes with what each misses of the floor (see ``infopt.select.filter_runs``)."""
        return filter_runs(self.rows(SCHEMES), None, self.floor, reference=self._reference_run)

    @property
    def chosen(self) -> str:
        """The pipeline's choice among the schemes."""
        return str(self.data.chosen[SCHEMES]["chosen"])

    def choice(self, floor: QualityFloor) -> Recommendation:
        """Return what `infopt.select` chooses among the schemes above a floor."""
        criterion = str(self.reference_row(SCHEMES)["workload.criterion"])
        table = self.rows(SCHEMES)
        return choose(table, None, floor, objective=criterion, reference=self._reference_run)

    def scheme(self, candidate: str) -> Row:
        """Return a scheme's row, with bits."""
        return {str(row[CANDIDATE]): row for row in rows_of(self.marked)}[candidate]

    @property
    def _reference_run(self) -> str:
        return str(self.reference_row(SCHEMES)["run"])

    def _bits(self, name: str, row: Row, reference: Row) -> float:
        """Return bits per weight; what a step reads tells them where the scheme recorded none."""
        recorded = number(row, "extra.weight_bits")
        if recorded is not None:
            return recorded
        kind = (text(row, "extra.quantization_formats") or "").rpartition(" ")[2]
        if row["run"] == reference["run"] or kind in _FLOAT_BITS:
            return _FLOAT_BITS.get(kind, float("nan"))
        own, base = (
            weight_bytes(self.curve(name, str(r[CANDIDATE]), "decode_")) for r in (row, reference)
        )
        return self._bits(name, reference, reference) * own / base


def weight_bytes(curve: pd.DataFrame) -> float:
    """Return what a decode step reads whatever its size; NaN where too few sizes were timed.

    Args:
        curve: ``num_tokens`` and ``bytes`` of steps (see ``StageResults.curve``).
    """
    if len(curve) < 2:
        return float("nan")
    fit = np.polyfit(floats(curve, "num_tokens"), floats(curve, "bytes"), 1)
    return float(fit[1])


def quantization_story(results_dir: str | Path, model: str | None = None) -> QuantizationStory:
    """Return the results of the pipeline if there are any, else of a miniature.

    Args:
        results_dir: The pipeline's folder; what the stage chose names the quality floor.
        model: What the miniature runs; None for the shipped tiny model.
    """
    return QuantizationStory(*story_parts(STAGE, results_dir, model))
