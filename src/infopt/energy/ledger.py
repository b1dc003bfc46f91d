"""`EnergyLedger`: a running account of a server's energy, request by request.

It watches the steps of all engines of a process (they run one after the other on one thread) and
reads the meter between them. A counter that is renewed seldom is read less often: what has happened
since goes to the steps in between by their duration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from infopt.energy.attribution import (
    NJ_PER_J,
    ObservedStep,
    RequestEnergy,
    SplitModel,
    charge,
    split_whole,
)
from infopt.energy.meters import EnergyMeter, Window
from infopt.engine.observer import StepObserver, StepShare
from infopt.engine.stats import StepStats

PATIENCE_S = 1.0
"""A window that has no energy after this time is given up."""

BytesOf = Callable[[StepStats], float]
"""Counts the bytes that a step moves."""


@dataclass(slots=True)
class ModelEnergy:
    """What the requests of one model used so far.

    Attributes:
        prefill_nj: Nanojoules for prompts.
        decode_nj: Nanojoules for outputs.
    """

    prefill_nj: int = 0
    decode_nj: int = 0


@dataclass(slots=True)
class _Pending:
    model: str
    step: ObservedStep
    split: SplitModel
    num_bytes: float


@dataclass(slots=True)
class EnergyLedger:
    """Energy by model, phase and request, and what was used between steps.

    Attributes:
        meter: Measures.
        settle_s: Least length of a window; 0 reads the meter after every step.
        now: Monotonic seconds.
        models: Totals by model.
        idle_nj: Nanojoules between steps.
        range_j: Joules so far with the constants of a model at their low and their high ends.
        num_lost_windows: Windows whose energy could not be had.
        lost_reason: Why the last one could not.
    """

    meter: EnergyMeter
    settle_s: float = 0.0
    now: Callable[[], float] = time.perf_counter
    models: dict[str, ModelEnergy] = field(default_factory=dict)
    idle_nj: int = 0
    range_j: tuple[float, float] = (0.0, 0.0)
    num_lost_windows: int = 0
    lost_reason: str | None = None
    _requests: dict[str, dict[str, RequestEnergy]] = field(default_factory=dict)
    _lost: set[tuple[str, str]] = field(default_factory=set)
    _pending: list[_Pending] = field(default_factory=list)
    _closed: set[tuple[str, str]] = field(default_factory=set)
    _watts: float | None = None
    _window: Window = field(init=False)
    _opened_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Open the first window."""
        self._open()

    def observer(self, model: str, split: SplitModel, bytes_of: BytesOf) -> StepObserver:
        """Return what an engine is to be watched with.

        Args:
            model: Name of the model.
            split: Divides its mixed steps.
            bytes_of: Counts the bytes of its steps.
        """
        self.models[model] = ModelEnergy()
        self._requests[model] = {}
        return _Observer(self, model, split, bytes_of)

    def take(self, model: str, request_id: str) -> tuple[RequestEnergy | None, str | None]:
        """Close the account of a request that has ended.

        A counter that has not moved since the request's last step leaves that part out. It is then
        estimated by the mean power before, for this answer alone: the totals take what the counter
        says later.

        Returns:
            Its energy, or None; and why there is none, or what of it was estimated.
        """
        key = (model, request_id)
        if self._waiting(key):
            self.settle()
        energy = self._requests[model].pop(request_id, None)
        is_lost = key in self._lost
        self._lost.discard(key)
        waiting = self._waiting(key)
        if waiting:
            self._closed.add(key)
            energy = self._with_estimate(energy, key, waiting)
            seconds = sum(p.step.step.duration_s for p in waiting)
            told = "its last" if energy else "no power is known yet for its last"
            estimated = " are estimated from the mean power before" if energy else ""
            return energy, f"{told} {seconds:.3g} s{estimated}: the counter has not moved since"
        if is_lost or energy is None:
            return None, self.lost_reason or "nothing was computed for it"
        return energy, None

    def _waiting(self, key: tuple[str, str]) -> list[_Pending]:
        """Return the steps of a request whose energy is not known yet."""
        model, request_id = key
        return [
            p
            for p in self._pending
            if p.model == model and any(s.request_id == request_id for s in p.step.shares)
        ]

    def _with_estimate(
        self, energy: RequestEnergy | None, key: tuple[str, str], waiting: Sequence[_Pending]
    ) -> RequestEnergy | None:
        if self._watts is None:
            return None
        accounts = {key[1]: energy or RequestEnergy()}
        for pending in waiting:
            step = pending.step
            step_nj = round(self._watts * step.step.duration_s * NJ_PER_J)
            charge(step_nj, step.shares, pending.split, accounts)
        return accounts[key[1]]

    def forget(self, model: str) -> None:
        """Close the accounts of all requests of a model."""
        self._requests[model].clear()
        self._lost = {key for key in self._lost if key[0] != model}
        for pending in self._pending:
            if pending.model == model:
                pending.step = ObservedStep(pending.step.step, ())

    def reset(self) -> None:
        """Start counting anew (after a warm-up)."""
        self._pending = []
        for model in self.models:
            self.models[model] = ModelEnergy()
            self.forget(model)
        self.idle_nj, self.range_j = 0, (0.0, 0.0)
        self._open()

    def settle(self) -> None:
        """Read the meter and charge what it says; what it cannot say yet waits."""
        self._window.stop()
        reading = self._window.reading(sum(p.num_bytes for p in self._pending))
        if reading.joules is not None:
            self._charge(round(reading.joules * NJ_PER_J), reading.seconds)
            low, high = self.range_j
            self.range_j = low + (reading.low or 0.0), high + (reading.high or 0.0)
            self._watts = reading.watts
        elif self.now() - self._opened_s < PATIENCE_S:
            return  # the same window goes on, and its steps wait
        else:
            self._give_up(reading.reason)
        self._pending, self._closed = [], set()
        self._open()

    def between_steps(self) -> None:
        """Charge what was used since the last step to nobody, where the meter is fast enough."""
        if self._is_due():
            self.settle()

    def add(self, model: str, step: ObservedStep, split: SplitModel, num_bytes: float) -> None:
        """Note a step that has ended."""
        self._pending.append(_Pending(model, step, split, num_bytes))
        if self._is_due():
            self.settle()

    def _is_due(self) -> bool:
        return self.now() - self._opened_s >= self.settle_s

    def _open(self) -> None:
        self._window, self._opened_s = self.meter.start(), self.now()

    def _charge(self, total_nj: int, seconds: float) -> None:
        durations = [p.step.step.duration_s for p in self._pending]
        gap_s = max(seconds - sum(durations), 0.0)
        *parts, idle_nj = split_whole(total_nj, [*durations, gap_s])
        self.idle_nj += idle_nj
        for pending, part in zip(self._pending, parts, strict=True):
            self._charge_step(pending, part)

    def _charge_step(self, pending: _Pending, step_nj: int) -> None:
        accounts: dict[str, RequestEnergy] = {}
        self.idle_nj += charge(step_nj, pending.step.shares, pending.split, accounts)
        total, open_accounts = self.models[pending.model], self._requests[pending.model]
        for request_id, energy in accounts.items():
            total.prefill_nj += energy.prefill_nj
            total.decode_nj += energy.decode_nj
            if (pending.model, request_id) in self._closed:
                continue  # its answer has been sent
            account = open_accounts.setdefault(request_id, RequestEnergy())
            account.prefill_nj += energy.prefill_nj
            account.decode_nj += energy.decode_nj

    def _give_up(self, reason: str | None) -> None:
        self.num_lost_windows += 1
        self.lost_reason = reason
        lost = {(p.model, s.request_id) for p in self._pending for s in p.step.shares}
        self._lost |= lost - self._closed


@dataclass(frozen=True, slots=True)
class _Observer:
    """Watches one engine for a ledger."""

    ledger: EnergyLedger
    model: str
    split: SplitModel
    bytes_of: BytesOf

    def step_started(self) -> None:
        """Close the idle time before the step."""
        self.ledger.between_steps()

    def step_ended(self, step: StepStats, shares: Sequence[StepShare]) -> None:
        """Hand the step to the ledger."""
        observed = ObservedStep(step, tuple(shares))
        self.ledger.add(self.model, observed, self.split, self.bytes_of(step))
