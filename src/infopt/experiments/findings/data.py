"""What the notebooks read: the results of a pipeline run, or of a miniature run on the spot.

    data = stage_results("batching", results_dir)
    data.note          # where the numbers come from, as Markdown
    data.rows("scheduling")

A notebook is opened by people who have not run the pipeline. Then the stage's questions are asked
again in small (fewer candidates and repeats, two minutes); its records are kept in the user's cache
and taken over by the next opening.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.errors import ResultError
from infopt.experiments.choose import choose_stage
from infopt.experiments.figures import slice_rows
from infopt.experiments.findings.miniature import miniature_specs
from infopt.experiments.power.collect import choose_power
from infopt.experiments.stages import run_stage
from infopt.experiments.tables import collect
from infopt.experiments.yaml_files import read_yaml
from infopt.results import load_samples, read_table, record_path
from infopt.select.rows import rows_of
from infopt.user_cache import cache_dir

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class StageResults:
    """Results of one stage.

    Attributes:
        table: One row per run.
        samples: Raw samples, long format (see ``load_samples``).
        chosen: Winner and reason by slice.
        note: Where the numbers come from, as Markdown.
        is_miniature: Whether they were measured just now, in small.
    """

    table: pd.DataFrame
    samples: pd.DataFrame
    chosen: Mapping[str, Mapping[str, Any]]
    note: str
    is_miniature: bool

    @property
    def slices(self) -> list[str]:
        """Names of the slices that this run measured."""
        return list(dict.fromkeys(str(name) for name in self.table["extra.slice"]))

    def rows(self, name: str) -> pd.DataFrame:
        """Return the rows of one slice, in the order of its candidates."""
        return slice_rows(self.table, name)

    def row(self, name: str, candidate: str) -> dict[str, Any]:
        """Return one candidate of a slice."""
        rows = {str(row["extra.candidate"]): row for row in rows_of(self.rows(name))}
        if candidate not in rows:
            raise ResultError(
                f"The slice {name} has no candidate {candidate!r}.",
                field="candidate",
                value=candidate,
                remedy=f"Candidates: {', '.join(rows)}.",
            )
        return rows[candidate]

    def curve(self, candidate: str, prefix: str) -> pd.DataFrame:
        """Return sample lists that belong together as a table.

        Args:
            candidate: Whose.
            prefix: Beginning of their names (``decode_``).
        """
        import pandas as pd

        slugs = set(self.table.loc[self.table["extra.candidate"] == candidate, "slug"])
        columns: dict[str, dict[int, float]] = {}
        for row in self.samples.to_dict("records"):
            name = str(row["name"])
            if row["slug"] in slugs and name.startswith(prefix):
                columns.setdefault(name.removeprefix(prefix), {})[row["index"]] = row["value"]
        return pd.DataFrame(columns).sort_index()


def stage_results(stage: str, results_dir: str | Path, model: str | None = None) -> StageResults:
    """Return the results of a stage: those of the pipeline if there are any, else of a miniature.

    Args:
        stage: ``baseline``, ``batching``, ``quantization``, ``kv_cache``, ``speculative``,
            ``moe`` or ``power``.
        results_dir: The pipeline's folder.
        model: What the miniature runs; None for the default model.
    """
    table_path = Path(results_dir, "tables", f"{stage}.parquet")
    if table_path.is_file():
        return _of_pipeline(stage, Path(results_dir), table_path)
    return _of_miniature(stage, model)


def _of_pipeline(stage: str, results_dir: Path, table_path: Path) -> StageResults:
    table = read_table(table_path)
    paths = [record_path(stage, slug, results_dir) for slug in table["slug"]]
    chosen = read_yaml(results_dir / "chosen" / f"{stage}.yaml")["slices"]
    if table.empty:
        reasons = "; ".join(f"{name}: {entry['reason']}" for name, entry in chosen.items())
        note = f"This machine has none of the questions of this stage. {reasons}."
        return StageResults(table, _no_samples(), chosen, note, is_miniature=False)
    # Slices that only explain may run a model of their own.
    deciding = [name for name, entry in chosen.items() if entry.get("decides", True)]
    own = table.loc[table["extra.slice"].isin(deciding)]
    first = (table if own.empty else own).iloc[0]
    model = "models of the slices' own" if own.empty else f"model `{first['config.model']}`"
    note = (
        f"The numbers below come from the pipeline's run in `{results_dir.name}/`: {model} "
        f"on {first['hardware.cpu_model']} "
        f"({first['hardware.num_cores']} cores), measured on {str(first['started'])[:10]}."
    )
    return StageResults(table, load_samples(paths), chosen, note, is_miniature=False)


def _no_samples() -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame({name: [] for name in ("run", "stage", "slug", "name", "index", "value")})


def _of_miniature(stage: str, model: str | None) -> StageResults:
    folder = cache_dir() / "miniature"
    specs = miniature_specs(stage, model)
    manifests = [run_stage(spec, folder) for spec in specs]
    table = collect(manifests, folder)
    paths = [record_path(stage, slug, folder) for slug in table["slug"]]
    note = (
        "There is no pipeline run here yet (`make run` makes one), so a **miniature** was measured "
        f"on the spot: model `{specs[0].model}`, {specs[0].repeats} pairs per comparison. Fewer "
        "than 6 pairs never give a verdict: read the ratios as a first impression."
    )
    if stage == "power":
        chosen = choose_power(table, manifests, specs)["slices"]
    else:
        chosen = choose_stage(table, specs, "default")["slices"]
    return StageResults(table, load_samples(paths), chosen, note, is_miniature=True)


def choices_table(chosen: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return what was chosen for each question, with the reason, as a table."""
    import pandas as pd

    # Within a question its candidates need no longer names.
    rows = [
        {
            "question": name,
            "chosen": entry["chosen"],
            "reference": entry["reference"],
            "certainty": entry["status"],
            "why": re.sub(rf"\b[a-z_]+/{re.escape(name)}\.", "", str(entry["reason"])),
        }
        for name, entry in chosen.items()
    ]
    return pd.DataFrame(rows).set_index("question")
