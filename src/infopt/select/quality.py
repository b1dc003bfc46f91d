"""The quality floor: how much worse than the float reference a configuration may answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from infopt.errors import ConfigError, check_known_keys
from infopt.evals.suite import TIERS
from infopt.registry import Registry
from infopt.select.objectives import perplexity_ratio_column
from infopt.select.rows import Row, config_of, matching_reference, number, rows_of, text
from infopt.select.violation import Violation, above, not_measured

if TYPE_CHECKING:
    import pandas as pd

KINDS_OF_TEXT = ("docs", "code")
_TASK = "quality.tasks."
_TIER = "quality.protocol.tier"

SCHEDULING_OPTIONS = frozenset(
    {
        "scheduling",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "block_size",
        "num_kv_pages",
        "kv_cache_memory_gib",
        "enable_prefix_caching",
        "preemption",
        "cuda_graphs",
        "speculative",
        "swap_memory_gib",
        "max_num_waiting",
        "num_threads",
        "seed",
        "expert_stats",
        "skip_tokenizer_init",
        "check_integrity",
    }
)
"""Options that change when tokens are computed, not what they are (given batch invariance)."""


@dataclass(frozen=True, slots=True)
class QualityFloor:
    """What is lost at most. Top-1 agreement is reported, not gated.

    Attributes:
        max_kl: Mean KL divergence from the float reference in nats.
        max_perplexity_ratio: Perplexity over the reference's, on docs and on code.
        check_tasks: Also refuse a task score below the lower end of the 95 % interval of the
            reference's score.
    """

    max_kl: float = 0.02
    max_perplexity_ratio: float = 1.02
    check_tasks: bool = True

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ConfigError: A limit is negative or not a finite number, or the switch is none.
        """
        for name in ("max_kl", "max_perplexity_ratio"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value < math.inf:
                raise ConfigError(
                    f"{name} must be a finite number >= 0, got {value!r}.", field=name, value=value
                )
        if not isinstance(self.check_tasks, bool):
            raise ConfigError(
                f"check_tasks must be true or false, got {self.check_tasks!r}.",
                field="check_tasks",
                value=self.check_tasks,
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that ``get_floor`` reads back."""
        return asdict(self)


FLOORS: Registry[QualityFloor] = Registry("quality floor")
FLOORS.register("default")(QualityFloor())
FLOORS.register("lossy")(QualityFloor(max_kl=0.10, max_perplexity_ratio=1.10))


def get_floor(floor: str | Mapping[str, Any] | QualityFloor) -> QualityFloor:
    """Return a floor from its name, plain data, or itself.

    Raises:
        ConfigError: Unknown name, key or value.
    """
    if isinstance(floor, QualityFloor):
        return floor
    if isinstance(floor, str):
        return FLOORS.get(floor)
    check_known_keys(floor, [f.name for f in fields(QualityFloor)], "the quality floor")
    return QualityFloor(**floor)


def check_quality(row: Row, references: Sequence[Row], floor: QualityFloor) -> list[Violation]:
    """Return what a run loses beyond the floor; a loss that was not measured counts as one.

    Args:
        row: A row of ``add_derived_columns``.
        references: From ``reference_rows``; a reference itself always passes.
        floor: The floor.
    """
    if row["run"] in {base["run"] for base in references}:
        return []
    if text(row, _TIER) is None:
        return [Violation("quality", _TIER, None, None, "Quality not measured")]
    found = [_check_limit(row, "max_kl", "quality.kl_mean", floor.max_kl)]
    for kind in KINDS_OF_TEXT:
        column = perplexity_ratio_column(kind)
        found.append(_check_limit(row, f"max_ppl_{kind}", column, floor.max_perplexity_ratio))
    if floor.check_tasks:
        found += _check_tasks(row, references)
    return [violation for violation in found if violation is not None]


def inherit_quality(table: pd.DataFrame, *, require_batch_invariance: bool = True) -> pd.DataFrame:
    """Fill in the quality of runs that differ from a measured one in scheduling alone.

    Scheduling, paging and batching do not change what a batch-invariant engine computes, so a
    quality measured once holds for all of them; the suite's goes before one that a stage measured
    in a way of its own. ``quality.inherited_from`` names the run that was
    measured (missing for runs that were measured themselves).

    Args:
        table: From ``load_results``.
        require_batch_invariance: Only where both runs passed the engine's self-test
            (``ops.batch_invariant``). Turn off to accept rounding differences between batch sizes.
    """
    table = table.copy()
    columns = [c for c in table.columns if c.startswith("quality.")]
    if columns and "quality.kl_mean" not in columns:
        columns.append("quality.kl_mean")
    rows = [
        dict.fromkeys(columns) | row | {"quality.inherited_from": None} for row in rows_of(table)
    ]
    sources: dict[str, Row] = {}
    for row in sorted(rows, key=_is_of_one_stage):
        key = _numerics(row, require_batch_invariance)
        if key is not None and text(row, _TIER) is not None:
            sources.setdefault(key, row)
    for row in rows:
        source = sources.get(_numerics(row, require_batch_invariance) or "")
        if source is not None and text(row, _TIER) is None:
            row.update({column: source[column] for column in columns})
            row["quality.inherited_from"] = source["run"]
            if number(source, "quality.kl_mean") is None:
                # The source is the reference of its KL: what computes the same has no distance.
                row["quality.kl_mean"] = 0.0
    for column in [*columns, "quality.inherited_from"]:
        table[column] = [row[column] for row in rows]
    return table


def _is_of_one_stage(row: Row) -> bool:
    """Whether a quality follows a protocol of its stage's own: no reference run has it."""
    return text(row, _TIER) not in TIERS


def _numerics(row: Row, require_batch_invariance: bool) -> str | None:
    """Return a key that is equal where the same tokens are computed, or None where unknown."""
    config = config_of(row) if row["status"] == "ok" else None
    if config is None or (require_batch_invariance and row.get("ops.batch_invariant") is not True):
        return None
    options = {k: v for k, v in config.items() if k not in SCHEDULING_OPTIONS and v is not None}
    return repr((row.get("hardware_id"), sorted(options.items(), key=lambda item: item[0])))


def _check_limit(row: Row, constraint: str, column: str, limit: float) -> Violation | None:
    value = number(row, column)
    if value is None:
        return not_measured(constraint, column, limit)
    return above(constraint, column, value, limit) if value > limit else None


def _check_tasks(row: Row, references: Sequence[Row]) -> list[Violation | None]:
    base = matching_reference(references, row, _TIER)
    if base is None:
        message = f"No reference run has the protocol {row[_TIER]!r}, so tasks cannot be compared"
        return [Violation("tasks", _TIER, None, None, message)]
    columns = [c for c in base if c.startswith(_TASK) and c.endswith(".score")]
    measured = [c for c in columns if number(base, c) is not None]
    names = [c.removeprefix(_TASK).removesuffix(".score") for c in measured]
    return [_check_task(row, base, name) for name in names]


def _check_task(row: Row, base: Row, name: str) -> Violation | None:
    """Compare a score with the reference's, if both ran the same items."""
    column, protocol = f"{_TASK}{name}.score", f"quality.protocol.tasks.{name}"
    score, limit = number(row, column), number(base, f"{_TASK}{name}.low")
    if score is None:
        return not_measured(f"task:{name}", column, limit)
    if text(row, protocol) != text(base, protocol):
        return not_measured(f"task:{name}", column, limit, "other items than the reference's")
    if limit is None or score >= limit:
        return None
    message = (
        f"Task {name}: score {score:.3g} is below {limit:.3g}, the lower end of the reference's "
        f"95 % interval (reference {float(base[column]):.3g})"
    )
    return Violation(f"task:{name}", column, score, limit, message)
