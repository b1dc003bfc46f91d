"""`Recommendation`: the chosen configuration with everything that speaks for and against it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from infopt.config import EngineConfig
from infopt.errors import ConfigError
from infopt.select.ablation import Effect
from infopt.select.front import Front
from infopt.select.interactions import Interaction

SCHEMA_VERSION = 1

Status = Literal["chosen", "undecided", "unproven", "none_feasible"]
"""``undecided``: intervals overlap with others. ``unproven``: there are no intervals to tell.
``none_feasible``: no configuration keeps the objective; there is nothing to serve."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured number of the chosen run.

    Attributes:
        column: Column of the results table.
        label: Its name in words.
        value: The number, in ``unit``.
        low, high: Its 95 % interval in the same unit, or None where none was measured.
        unit: Unit of the three.
    """

    column: str
    label: str
    value: float
    low: float | None
    high: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Tie:
    """A run that the measurements cannot tell from the chosen one.

    Attributes:
        run: Its name.
        value: Its objective, in stored units.
        reason: Why it is a tie, and why it was not taken.
    """

    run: str
    value: float
    reason: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A run that was not chosen, and every reason for it."""

    run: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What would change the choice.

    Attributes:
        kind: ``relax`` a constraint and another run wins; ``tighten`` one and the choice is lost.
        constraint: Which (``ttft_s``, ``max_kl``, ...).
        limit: Its value now, in stored units (None where no number is involved).
        needed: The value at which the choice changes.
        run: Who wins then (None: nobody).
        message: The whole as a sentence.
    """

    kind: Literal["relax", "tighten"]
    constraint: str
    limit: float | None
    needed: float | None
    run: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Nearest:
    """The run that misses the constraints by the least, where none keeps them.

    Attributes:
        run: Its name.
        misses: What it misses and by how much.
        config: Its configuration.
    """

    run: str
    misses: tuple[str, ...]
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BaselineGain:
    """The goodput of the choice against a baseline, each at the highest rate that it sustains.

    Attributes:
        name: ``static`` (fixed batches, tuned) or ``continuous``.
        run: Its run on fresh seeds.
        rate_per_s: Arrivals it was loaded with, in requests/s.
        goodput_per_s: Median of its goodput over the seeds, in requests/s.
        chosen_goodput_per_s: The same of the choice.
        ratio: Choice / baseline, median of the pairs; None where a pair has no goodput.
        low, high: 95 % interval over the seeds.
        num_seeds: Seeds of arrivals.
        slo_factor: How many times longer the limits are than asked for; 1 where the baseline
            sustains a rate under the objective itself.
        message: The whole in a sentence.
    """

    name: str
    run: str
    rate_per_s: float
    goodput_per_s: float
    chosen_goodput_per_s: float
    ratio: float | None
    low: float | None
    high: float | None
    num_seeds: int
    slo_factor: float
    message: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to serve on the measured machine, and why.

    Attributes:
        status: How sure the choice is.
        reason: The choice in one or two sentences.
        config: Full engine configuration; None where nothing is feasible.
        run: The run that measured it.
        objective: What was optimised.
        slo_name: Name of the service-level objective, if it has one.
        slo: Its limits; None: no limits.
        floor: The quality floor; None: no floor.
        evidence: Measured numbers of the run.
        ties: Runs that cannot be told from it.
        sensitivity: What would change the choice.
        rejected: The other runs with their reasons.
        nearest: The closest miss, where nothing is feasible.
        notes: Further remarks (quality measured on another run, missing intervals).
        hardware: Fingerprint of the machine all runs were measured on.
        hardware_id: Its short name.
        infopt_version: Release that chose.
        commit: Code that chose.
        created: UTC, ISO 8601.
        baselines: Its goodput against what one would serve otherwise.
        ablation: What each technique in it is worth, axis by axis.
        interactions: Where the whole is more or less than its parts.
        front: The trade-off of the finalists.
    """

    status: Status
    reason: str
    config: dict[str, Any] | None
    run: str | None
    objective: str
    slo_name: str | None
    slo: dict[str, Any] | None
    floor: dict[str, Any] | None
    evidence: tuple[Evidence, ...]
    ties: tuple[Tie, ...]
    sensitivity: tuple[Sensitivity, ...]
    rejected: tuple[Rejected, ...]
    nearest: Nearest | None
    notes: tuple[str, ...]
    hardware: dict[str, Any]
    hardware_id: str
    infopt_version: str
    commit: str
    created: str
    baselines: tuple[BaselineGain, ...] = ()
    ablation: tuple[Effect, ...] = ()
    interactions: tuple[Interaction, ...] = ()
    front: Front | None = None

    def engine_config(self) -> EngineConfig:
        """Return the configuration to serve.

        Raises:
            ConfigError: Nothing was feasible; the message says what the nearest run misses.
        """
        if self.config is None:
            raise ConfigError(
                f"This recommendation holds no configuration: {self.reason}",
                field="status",
                value=self.status,
                remedy="Relax the objective or the quality floor and select again.",
            )
        return EngineConfig.from_dict(self.config)

    def changed_options(self) -> dict[str, Any]:
        """Return the model and the options that are not at their defaults; {} without a choice."""
        if self.config is None:
            return {}
        defaults = EngineConfig(model=self.config["model"]).to_dict()
        return {k: v for k, v in self.config.items() if k == "model" or v != defaults[k]}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; the configuration comes first."""
        document = asdict(self)
        first = {name: document.pop(name) for name in ("status", "reason", "run", "config")}
        return _lists({"schema_version": SCHEMA_VERSION, **first, **document})

    def _repr_html_(self) -> str:
        from infopt.select.html import recommendation_html

        return recommendation_html(self)


def _lists(value: Any) -> Any:
    """Turn tuples into lists, as YAML and JSON have them."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_lists(item) for item in value]
    return value
