"""Findings of the notebook on power and cost: what it reads, and sentences computed from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.energy.break_even import OwnOrElsewhere
from infopt.energy.model import order_survives
from infopt.energy.prices import Prices
from infopt.experiments.findings.data import StageResults, stage_results
from infopt.experiments.yaml_files import read_yaml
from infopt.results.html import format_value
from infopt.select.energy_order import constants_of, is_derived, work_of
from infopt.select.rows import Row, number, rows_of

if TYPE_CHECKING:
    import pandas as pd

STAGE = "power"
THREADS, REPLICAS, COLD_START, CAPS = "threads", "replicas", "cold_start", "caps"
CANDIDATE = "extra.candidate"
PREFILL_J, DECODE_J = "energy.prefill_j_per_prompt_token", "energy.decode_j_per_token"
PREFILL_S, DECODE_S = "extra.prefill_s_per_token", "extra.decode_s_per_token"


@dataclass(frozen=True)
class PowerStory:
    """The stage's results, and the prices to read them with.

    Attributes:
        data: Results of the stage.
        prices: What is known of prices.
    """

    data: StageResults
    prices: Prices

    @property
    def slices(self) -> list[str]:
        """Names of the slices that this run measured."""
        return self.data.slices

    def rows(self, name: str) -> list[Row]:
        """Return the candidates of a slice; none where it was not measured."""
        return rows_of(self.data.rows(name)) if name in self.slices else []

    @cached_property
    def size(self) -> Row | None:
        """The instance that was chosen: its energy and times are those of the answer."""
        chosen = self.data.chosen.get(THREADS, {}).get("chosen")
        rows = {str(row[CANDIDATE]): row for row in self.rows(THREADS)}
        return rows.get(str(chosen))

    @cached_property
    def requests(self) -> pd.DataFrame:
        """Tokens and attributed joules of each request of one run of the chosen instance."""
        name = "" if self.size is None else str(self.size[CANDIDATE])
        return self.data.curve(name, "requests.")

    @property
    def is_derived(self) -> bool:
        """Whether energies were modelled and not measured."""
        return any(is_derived(row) for row in rows_of(self.data.table))

    def seconds_of(self, num_input: float, num_output: float) -> float | None:
        """Return the machine-seconds of a request at full load; None where steps did not tell."""
        return self._linear(PREFILL_S, DECODE_S, num_input, num_output)

    def joules_of(self, num_input: float, num_output: float) -> float | None:
        """Return the attributed joules of a request; None where they were not told apart."""
        return self._linear(PREFILL_J, DECODE_J, num_input, num_output)

    def _linear(self, first: str, second: str, num_input: float, num_output: float) -> float | None:
        row = self.size or {}
        rates = number(row, first), number(row, second)
        if rates[0] is None or rates[1] is None:
            return None
        return num_input * rates[0] + num_output * rates[1]

    def choice(self, name: str) -> OwnOrElsewhere | None:
        """Return the machine beside a price elsewhere; None without what the comparison needs."""
        machine = self.prices.machine
        if machine is None or self.seconds_of(1, 1) is None:
            return None
        if machine.kwh_price and self.joules_of(1, 1) is None:
            return None
        return OwnOrElsewhere(
            machine,
            self.prices.elsewhere[name],
            capacity=lambda i, o: 1.0 / (self.seconds_of(i, o) or 1.0),
            energy=(lambda i, o: self.joules_of(i, o) or 0.0) if machine.kwh_price else None,
        )


def power_story(
    results_dir: str | Path, model: str | None = None, prices: Mapping[str, Any] | None = None
) -> PowerStory:
    """Return the results of the pipeline if there are any, else of a miniature.

    Args:
        results_dir: The pipeline's folder.
        model: What the miniature runs; None for the default model.
        prices: As the configuration's ``prices``; None takes those of the run.
    """
    data = stage_results(STAGE, results_dir, model)
    if prices is None and not data.is_miniature:
        prices = read_yaml(Path(results_dir, "chosen", f"{STAGE}.yaml")).get("prices")
    return PowerStory(data, Prices.from_dict(prices or {}))


def joules_text(row: Row, name: str, unit: str) -> str:
    """Return an energy with its range and whether it is derived.

    Args:
        row: A run.
        name: ``j_per_token`` or ``j_per_request``.
        unit: Its unit.
    """
    value = number(row, f"energy.{name}")
    if value is None:
        return f"no energy ({row.get('energy.reason')})"
    text = f"{format_value(value, 3)} {unit}"
    if not is_derived(row):
        return text
    ends = [number(row, f"energy.{name}_{end}") for end in ("low", "high")]
    low, high = (format_value(end, 2) for end in ends if end is not None)
    return f"{text} (derived from constants, {low} to {high} over their ranges)"


def order_sentence(rows: list[Row]) -> str:
    """Return which candidate takes least energy, and whether that holds over the ranges."""
    known = [row for row in rows if number(row, "energy.j_per_token") is not None]
    if len(known) < 2:
        return "There are no two energies to compare."
    best = min(known, key=lambda row: number(row, "energy.j_per_token") or 0.0)
    text = f"Least energy per token: `{best[CANDIDATE]}`, {joules_text(best, 'j_per_token', 'J')}"
    work = work_of(best)
    if work is None:
        return f"{text}."
    others = [(str(row[CANDIDATE]), work_of(row)) for row in known if row is not best]
    constants = constants_of(best)
    lost = [n for n, w in others if w is not None and not order_survives(work, w, constants)]
    if not lost:
        return f"{text}; it is the least at all ends of these ranges."
    return f"{text}; within these ranges it can be above that of {', '.join(lost)}."
