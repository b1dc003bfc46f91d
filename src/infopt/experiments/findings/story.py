"""What the notebooks of the stages with slices read: rows, references, curves, and the floors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from infopt.experiments.findings.data import StageResults, stage_results
from infopt.experiments.yaml_files import read_yaml
from infopt.select import FLOORS, QualityFloor, get_floor
from infopt.select.rows import Row, rows_of

if TYPE_CHECKING:
    import pandas as pd

CANDIDATE = "extra.candidate"


@dataclass(frozen=True)
class StageStory:
    """A stage's results.

    Attributes:
        data: Results of the stage.
        floor: Quality floor that its choices keep.
    """

    data: StageResults
    floor: QualityFloor

    @property
    def slices(self) -> list[str]:
        """Names of the slices that this run measured."""
        return self.data.slices

    def rows(self, name: str) -> pd.DataFrame:
        """Return the candidates of a slice.

        Raises:
            ResultError: This run has no such slice.
        """
        return self.data.rows(name)

    def reference_row(self, name: str) -> Row:
        """Return the candidate that a slice's others are paired with."""
        rows = {str(row["slug"]): row for row in rows_of(self.data.rows(name))}
        first = next(iter(rows.values()))
        return rows[str(first["workload.reference"])]

    def curve(self, name: str, candidate: str, prefix: str) -> pd.DataFrame:
        """Return sample lists of one candidate of one slice as a table (see ``StageResults``)."""
        return replace(self.data, table=self.data.rows(name)).curve(candidate, prefix)

    @property
    def limits(self) -> dict[str, float]:
        """The KL that each floor allows, by name, for plots."""
        return {
            f"floor {self.floor.max_kl:g}": self.floor.max_kl,
            **self._lossy("max_kl"),
        }

    @property
    def ratio_limits(self) -> dict[str, float]:
        """The perplexity ratio that each floor allows, by name, for plots."""
        allowed = self.floor.max_perplexity_ratio
        return {f"floor {allowed:g}x": allowed, **self._lossy("max_perplexity_ratio", "x")}

    def _lossy(self, name: str, unit: str = "") -> dict[str, float]:
        lossy = FLOORS.get("lossy")
        if self.floor == lossy:
            return {}
        value = float(getattr(lossy, name))
        return {f"lossy {value:g}{unit}": value}


def story_parts(
    stage: str, results_dir: str | Path, model: str | None
) -> tuple[StageResults, QualityFloor]:
    """Return the results of the pipeline if there are any, else of a miniature, and the floor.

    Args:
        stage: The stage.
        results_dir: The pipeline's folder; what the stage chose names the quality floor.
        model: What the miniature runs; None for its own.
    """
    data = stage_results(stage, results_dir, model)
    path = Path(results_dir, "chosen", f"{stage}.yaml")
    floor = None if data.is_miniature else read_yaml(path).get("quality_floor")
    return data, get_floor(floor or "default")
