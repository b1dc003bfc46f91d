"""What the batching notebook says about the engine behind a server, from the numbers of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.experiments.figures import ttft_column
from infopt.experiments.findings.miniature import miniature_specs
from infopt.experiments.stages import run_stage
from infopt.experiments.tables import collect
from infopt.experiments.yaml_files import read_yaml
from infopt.plotting import results_table
from infopt.plotting.data import is_missing
from infopt.results import read_table
from infopt.select.rows import rows_of
from infopt.user_cache import cache_dir

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "slo.goodput_requests_per_s",
    "slo.goodput_share",
    "latency.ttft_s.p50",
    "latency.ttft_s.p90",
    "latency.e2e_s.p50",
)


@dataclass(frozen=True)
class LoadStory:
    """A load sweep.

    Attributes:
        table: One row per rate, rising.
        saturation: The saturation point (`infopt.bench.load_sweep.Saturation` as plain data).
        note: Where the numbers come from, as Markdown.
        is_miniature: Whether they were measured just now, in small.
    """

    table: pd.DataFrame
    saturation: Mapping[str, Any]
    note: str
    is_miniature: bool

    @property
    def bracket(self) -> tuple[float | None, float | None]:
        """Between which rates the saturation point lies, in requests per second."""
        return self.saturation["last_good_per_s"], self.saturation["first_bad_per_s"]

    @property
    def limits(self) -> dict[str, float]:
        """Limits of the objective in seconds, by name."""
        row = rows_of(self.table)[0]
        names = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
        found = {name: row.get(f"slo.limits.{name}") for name in names}
        return {name: float(v) for name, v in found.items() if v is not None and not is_missing(v)}

    @property
    def ttft(self) -> str:
        """Column with the time to first token that these runs are long enough for."""
        return ttft_column(self.table)


def load_story(results_dir: str | Path, model: str | None = None) -> LoadStory:
    """Return the load sweep of the pipeline if there is one, else that of a miniature.

    Args:
        results_dir: The pipeline's folder.
        model: What the miniature runs; None for the default model.
    """
    table_path = Path(results_dir, "tables", "serving.parquet")
    if table_path.is_file():
        saturation = read_yaml(Path(results_dir, "chosen", "serving.yaml"))["saturation"]
        note = "The load sweep below is that of the pipeline's run."
        return LoadStory(_rising(read_table(table_path)), saturation, note, is_miniature=False)
    (spec,) = miniature_specs("serving", model)
    folder = cache_dir() / "miniature"
    manifest = run_stage(spec, folder)
    note = (
        "There is no load sweep of the pipeline here yet (`make run` makes one), so a short one "
        f"was measured on the spot: model `{spec.model}`, {spec.options['duration_s']:g} s per "
        "rate. So few requests leave the saturation point uncertain."
    )
    table = _rising(collect([manifest], folder))
    return LoadStory(table, manifest["saturation"], note, is_miniature=True)


def load_table(story: LoadStory) -> pd.DataFrame:
    """Return goodput and latencies by offered rate."""
    table = results_table(story.table, COLUMNS, label="extra.candidate")
    table.index.name = "offered"
    return table


def meaning(story: LoadStory) -> str:
    """Say what rising load did."""
    rows = rows_of(story.table)
    first, last = rows[0], rows[-1]
    peak = max(rows, key=lambda row: row["slo.goodput_requests_per_s"])
    column = "latency.ttft_s.p50"
    return (
        f"From {first['extra.rate_per_s']:.3g} to {last['extra.rate_per_s']:.3g} requests/s "
        f"offered the median first token went from {1e3 * first[column]:.0f} ms to "
        f"{1e3 * last[column]:.0f} ms. Goodput was highest at {peak['extra.rate_per_s']:.3g} "
        f"requests/s, with {peak['slo.goodput_requests_per_s']:.3g} requests/s within the "
        f"objective; at the highest rate it was {last['slo.goodput_requests_per_s']:.3g}."
    )


def answer(story: LoadStory) -> str:
    """Say how much load the server takes, and how sure that is."""
    limits = ", ".join(f"`{name}` <= {limit:g} s" for name, limit in story.limits.items())
    sentence = story.saturation["sentence"]
    return f"**{sentence[0].upper()}{sentence[1:]}.** The objective: {limits}."


def check(story: LoadStory) -> None:
    """Assert what the notebook claims.

    Raises:
        AssertionError: A claim does not hold for these results.
    """
    assert set(story.table["status"]) == {"ok"}, "every rate was measured"
    assert set(story.table["extra.transport"]) == {"http"}, "the load went over HTTP"
    for row in rows_of(story.table):
        within = row["slo.num_met"] / row["slo.num_requests"]
        assert within == row["slo.goodput_share"], "failed requests count against goodput"
        low, high = story.bracket
        rate, share = row["extra.rate_per_s"], story.saturation["target_share"]
        assert low is None or rate > low or within >= share, "the load below the point is kept"
        assert high is None or rate != high or within < share, "the load above it is not"


def _rising(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values(by=["extra.rate_per_s"]).reset_index(drop=True)
