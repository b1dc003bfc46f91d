"""Who used the energy of a window: each request, prefill and decode apart.

The model, declared with every result:

1. A window's energy goes to its steps by their duration, and what lies between steps to ``idle``.
2. A step's energy goes to prefill and decode by a `SplitModel`: by FLOPs, or by what each phase
   would take alone, in seconds per step and token that were fitted to the steps at hand.
3. Within a phase it goes to requests by the tokens that the step computed for them.

The account is kept in whole nanojoules, so the parts add up to the total exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from infopt.engine.observer import StepShare
from infopt.engine.stats import StepStats
from infopt.errors import MeasurementError
from infopt.models.config import ModelConfig
from infopt.models.fallback.config import TransformersConfig

NJ_PER_J = 1_000_000_000

_MIN_STEPS = 4


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """A step and what it did for whom.

    Attributes:
        step: The engine's record.
        shares: One per sequence.
    """

    step: StepStats
    shares: tuple[StepShare, ...]


class StepCollector:
    """An observer that keeps all steps, for attribution afterwards."""

    def __init__(self) -> None:
        """Start empty."""
        self.steps: list[ObservedStep] = []

    def step_started(self) -> None:
        """Do nothing."""

    def step_ended(self, step: StepStats, shares: Sequence[StepShare]) -> None:
        """Keep the step."""
        self.steps.append(ObservedStep(step, tuple(shares)))


@dataclass(frozen=True, slots=True)
class SplitModel:
    """Divides a mixed step: the weight of a phase is what it would take in a step of its own.

    Attributes:
        name: ``flops`` or ``time``.
        per_prefill_token: Weight of a prefill token.
        per_decode_token: Weight of a decode token.
        per_pair: Weight of an attention pair, in either phase.
        per_phase: Weight of a phase that has any token: what a step takes for reading the weights.
    """

    name: str
    per_prefill_token: float
    per_decode_token: float
    per_pair: float = 0.0
    per_phase: float = 0.0

    def weights(self, shares: Sequence[StepShare]) -> tuple[float, float]:
        """Return the weights of prefill and decode in a step."""
        prefill, decode = _phase_tokens(shares)
        return (
            self.per_phase * (prefill > 0)
            + self.per_prefill_token * prefill
            + self.per_pair * sum(s.num_prefill_pairs for s in shares),
            self.per_phase * (decode > 0)
            + self.per_decode_token * decode
            + self.per_pair * sum(s.num_decode_pairs for s in shares),
        )


def flop_model(config: ModelConfig | TransformersConfig) -> SplitModel:
    """Return the split by FLOPs: two per weight and token, four per pair and query channel.

    Of a model that transformers runs only the weights are known, so its pairs count nothing.

    A decode step reads all weights for few FLOPs, so in a mixed step this charges decode little;
    `time_model` says what it really took where there are pure steps to learn it from.
    """
    if isinstance(config, TransformersConfig):
        per_token = 2.0 * config.num_active_parameters
        return SplitModel("flops", per_token, per_token)
    experts = 0 if config.moe is None else config.moe.top_k
    linear = config.num_layers * config.attention_parameters + config.mlp_parameters(experts)
    per_pair = 4.0 * config.query_size * config.num_layers
    return SplitModel("flops", 2.0 * linear, 2.0 * linear, per_pair)


def time_model(steps: Sequence[ObservedStep]) -> SplitModel:
    """Return the split by time: seconds per step, per prefill and per decode token of these steps.

    Least squares of relative errors: a step that reads a long prompt takes as long as many that
    write, and would drown them. The seconds per step are left out where they come out negative.

    Raises:
        MeasurementError: The steps do not tell the phases apart (too few, or all of one kind), or a
            token would take no time.
    """
    rows = np.array([(1.0, *_phase_tokens(s.shares)) for s in steps]).reshape(-1, 3)
    seconds = np.array([s.step.duration_s for s in steps])
    rows, seconds = rows[seconds > 0], seconds[seconds > 0]
    if len(rows) < _MIN_STEPS or np.linalg.matrix_rank(rows[:, 1:]) < 2:
        raise MeasurementError(
            f"{len(rows)} steps do not tell prefill and decode apart.",
            field="split",
            value=len(rows),
            remedy="Split mixed steps by FLOPs.",
        )
    per_step, *per_token = _fitted(rows, seconds)
    if per_step < 0:
        per_step, per_token = 0.0, _fitted(rows[:, 1:], seconds)
    if not all(value > 0 for value in per_token):
        raise MeasurementError(
            f"The fitted seconds per token are not positive: {per_token}.",
            field="split",
            value=per_token,
            remedy="Split mixed steps by FLOPs.",
        )
    return SplitModel("time", per_token[0], per_token[1], per_phase=per_step)


def _fitted(rows: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Return the factors of the columns that give the seconds with the least relative error."""
    return np.linalg.lstsq(rows / seconds[:, None], np.ones(len(rows)), rcond=None)[0].tolist()


@dataclass(slots=True)
class RequestEnergy:
    """What one request used.

    Attributes:
        prefill_nj: Nanojoules for its prompt.
        decode_nj: Nanojoules for its output.
    """

    prefill_nj: int = 0
    decode_nj: int = 0

    @property
    def joules(self) -> float:
        """All of it."""
        return (self.prefill_nj + self.decode_nj) / NJ_PER_J


@dataclass(slots=True)
class Attribution:
    """An account of energy.

    Attributes:
        total_nj: What was to be attributed.
        requests: By request.
        idle_nj: What belongs to no request: time between steps.
        split: Name of the model that divided mixed steps.
    """

    total_nj: int = 0
    requests: dict[str, RequestEnergy] = field(default_factory=dict)
    idle_nj: int = 0
    split: str = "flops"

    @property
    def prefill_nj(self) -> int:
        """Energy of all prompts."""
        return sum(r.prefill_nj for r in self.requests.values())

    @property
    def decode_nj(self) -> int:
        """Energy of all outputs."""
        return sum(r.decode_nj for r in self.requests.values())


def attribute(
    joules: float, seconds: float, steps: Sequence[ObservedStep], split: SplitModel
) -> Attribution:
    """Attribute the energy of a window.

    Args:
        joules: Of the window.
        seconds: Its length; what its steps do not fill is idle.
        steps: Its steps.
        split: Divides mixed steps.

    Returns:
        An account whose parts add up to ``round(joules * 1e9)`` nanojoules exactly.
    """
    account = Attribution(round(joules * NJ_PER_J), split=split.name)
    durations = [s.step.duration_s for s in steps]
    gap_s = max(seconds - sum(durations), 0.0)
    *parts, account.idle_nj = split_whole(account.total_nj, [*durations, gap_s])
    for step, part in zip(steps, parts, strict=True):
        account.idle_nj += charge(part, step.shares, split, account.requests)
    return account


def charge(
    step_nj: int,
    shares: Sequence[StepShare],
    split: SplitModel,
    requests: dict[str, RequestEnergy],
) -> int:
    """Add a step's energy to the requests in it; return what nobody took (0 but for no tokens).

    Args:
        step_nj: Energy of the step.
        shares: What it did for whom.
        split: Divides it between prefill and decode.
        requests: Accounts by request; new ones are opened.
    """
    weights = split.weights(shares)
    if not sum(weights) > 0:
        return step_nj
    prefill_nj, decode_nj = split_whole(step_nj, weights)
    prefill = split_whole(prefill_nj, [s.num_prefill_tokens for s in shares])
    decode = split_whole(decode_nj, [s.num_decode_tokens for s in shares])
    for share, first, second in zip(shares, prefill, decode, strict=True):
        account = requests.setdefault(share.request_id, RequestEnergy())
        account.prefill_nj += first
        account.decode_nj += second
    return 0


def split_whole(total: int, weights: Sequence[float]) -> list[int]:
    """Divide a whole number by weights into whole numbers that add up to it.

    Cuts are rounded, not parts, so no part is off by more than one. Without any weight everything
    goes to the last part.

    Args:
        total: What to divide.
        weights: Not negative.
    """
    whole = float(sum(weights))
    if not whole > 0:
        return [0] * (len(weights) - 1) + [total] if weights else []
    parts, before, reached, last = [], 0, 0.0, _last_positive(weights)
    for index, weight in enumerate(weights):
        reached += weight
        # The last part that may have any takes the rest: sums of floats miss their total.
        cut = total if index >= last else min(round(total * (reached / whole)), total)
        parts.append(cut - before)
        before = cut
    return parts


def _last_positive(weights: Sequence[float]) -> int:
    return max(i for i, weight in enumerate(weights) if weight > 0)


def _phase_tokens(shares: Sequence[StepShare]) -> tuple[int, int]:
    return sum(s.num_prefill_tokens for s in shares), sum(s.num_decode_tokens for s in shares)
