"""What a configuration can be good at: every objective with its column, direction and unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infopt.errors import ConfigError
from infopt.registry import Registry
from infopt.results.metrics import Metric, metric_of
from infopt.select.rows import Row, matching_reference, number, reference_rows, rows_of

if TYPE_CHECKING:
    import pandas as pd

_PERPLEXITY = "quality.perplexity."


@dataclass(frozen=True, slots=True)
class Objective:
    """One thing to optimise.

    Attributes:
        name: Name in configurations (``goodput``).
        column: Column of the results table.
        paired: Name of its paired ratio in ``comparison``, where speed decides; None for numbers
            that noise does not touch.
        is_exact: Whether repeating the run gives the same number (sizes do, times do not).
    """

    name: str
    column: str
    paired: str | None = None
    is_exact: bool = False

    @property
    def metric(self) -> Metric:
        """Label, unit and scale of the column."""
        return metric_of(self.column)

    @property
    def is_maximised(self) -> bool:
        """Whether more is better."""
        return self.metric.better == "higher"


OBJECTIVES: Registry[Objective] = Registry("objective")


def get_objective(objective: str | Objective) -> Objective:
    """Return the objective of a name.

    Raises:
        ConfigError: Unknown name (with the nearest valid one).
    """
    return objective if isinstance(objective, Objective) else OBJECTIVES.get(objective)


def get_objectives(objectives: Sequence[str | Objective]) -> list[Objective]:
    """Return several objectives.

    Raises:
        ConfigError: An unknown name, a repeated one, or none at all.
    """
    found = [get_objective(o) for o in objectives]
    names = [o.name for o in found]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"Objectives must be one or more different names, got {names}.",
            field="objectives",
            value=names,
            remedy=f"Choose from: {', '.join(OBJECTIVES.names())}.",
        )
    return found


def add_derived_columns(
    table: pd.DataFrame, reference: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """Return the table with the columns that objectives compute from others.

    * ``quality.perplexity_ratio.<kind>.ratio``, where a record does not hold it: perplexity over
      that of the reference run, measured under the same protocol.
    * ``quality.perplexity_ratio``: the worst of them.
    * ``quality.kl_mean`` of the reference itself: 0 by definition.
    * ``memory.engine_bytes``: weights and KV pool together.

    A value is missing where one of its parts is.

    Args:
        table: From ``load_results``.
        reference: Reference runs (see ``reference_rows``).
    """
    references = reference_rows(table, reference)
    table = table.copy()
    if {"memory.weights_bytes", "memory.kv_pool_bytes"} <= set(table.columns):
        pool = table["memory.kv_pool_bytes"]
        table["memory.engine_bytes"] = table["memory.weights_bytes"] + pool
    is_reference = table["run"].isin([row["run"] for row in references])
    if "quality.kl_mean" in table.columns:
        table["quality.kl_mean"] = table["quality.kl_mean"].astype(float).mask(is_reference, 0.0)
    kinds = [c.removeprefix(_PERPLEXITY) for c in table.columns if c.startswith(_PERPLEXITY)]
    for kind in kinds:
        table[perplexity_ratio_column(kind)] = [
            _perplexity_ratio(row, references, kind) for row in rows_of(table)
        ]
    if kinds:
        ratios = table[[perplexity_ratio_column(kind) for kind in kinds]]
        # A missing kind must not make the worst ratio look better than it is.
        table["quality.perplexity_ratio"] = ratios.max(axis=1, skipna=False)
    return table


def perplexity_ratio_column(kind: str) -> str:
    """Return the column of the perplexity ratio on one kind of text."""
    return f"quality.perplexity_ratio.{kind}.ratio"


def _perplexity_ratio(row: Row, references: Sequence[Row], kind: str) -> float:
    recorded = number(row, perplexity_ratio_column(kind))
    if recorded is not None:
        return recorded
    base = matching_reference(references, row, f"quality.protocol.texts.{kind}")
    own = number(row, _PERPLEXITY + kind)
    other = None if base is None else number(base, _PERPLEXITY + kind)
    return float("nan") if own is None or other is None else own / other


def _register(*objectives: Objective) -> None:
    for objective in objectives:
        assert objective.metric.better is not None, objective.name
        OBJECTIVES.register(objective.name)(objective)


_register(
    Objective("kl_mean", "quality.kl_mean", is_exact=True),
    Objective("perplexity_ratio", "quality.perplexity_ratio", is_exact=True),
    Objective("ttft_p50", "latency.ttft_s.p50", "ttft_s"),
    Objective("ttft_p99", "latency.ttft_s.p99"),
    Objective("tpot_p50", "latency.tpot_s.p50", "tpot_s"),
    Objective("tpot_p99", "latency.tpot_s.p99"),
    Objective("e2e_p50", "latency.e2e_s.p50", "e2e_s"),
    Objective("throughput", "throughput.output_tokens_per_s", "output_tokens_per_s"),
    Objective("goodput", "slo.goodput_requests_per_s", "goodput_requests_per_s"),
    Objective("memory", "memory.engine_bytes", is_exact=True),
    Objective("peak_memory", "memory.peak_rss_bytes"),
    Objective("j_per_token", "energy.j_per_token", "j_per_token"),
    Objective("j_per_request", "energy.j_per_request"),
    Objective("cost_per_million", "cost.per_million_output_tokens"),
    Objective("cost_per_request", "cost.per_request"),
)
