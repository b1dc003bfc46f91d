"""Times single ops inside real steps: the same kernels, weights, pages and caches as in a run.

Ops are timed where they stand, one after the other through all layers, since an op that is repeated
alone finds its weights in the cache. A backend that runs all layers in one call is taken apart for
that; the same step in one piece is timed beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

import torch

from infopt.bench.roofline_ops import LAYER_OPS
from infopt.bench.uniform_step import Clock, StepKind, uniform_step
from infopt.engine.engine import Engine
from infopt.engine.runner import ModelRunner
from infopt.errors import MeasurementError
from infopt.ops import OpSet
from infopt.ops.layer_stack import LayerPages, LayerWeights, OpByOpStack, StackSpec
from infopt.ops.linear import Linear
from infopt.ops.mlp import DenseMlp, Mlp

BETWEEN = "between"
"""What a forward pass spends outside its ops: embedding, rotary tables, Python."""

MIN_RUNS = 3

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Median times of a step's parts.

    Attributes:
        kind: The step.
        seconds: By op, and what lies between the ops.
        whole_s: The same step as it normally runs: model, head and sampling.
        num_runs: Timed runs behind each median.
    """

    kind: StepKind
    seconds: dict[str, float]
    whole_s: float
    num_runs: int


def time_ops(engine: Engine, kind: StepKind, budget_s: float) -> OpTimes | None:
    """Run a step again and again, in one piece and taken apart.

    Args:
        engine: Idle; its prefix cache is emptied.
        kind: The step.
        budget_s: Time for all runs; each way has at least ``MIN_RUNS`` after one that is not timed.

    Returns:
        The medians, or None where the engine's limits or page pool do not hold the step.

    Raises:
        MeasurementError: If the model has experts.
    """
    now = _clock_of(engine.runner.device)
    with uniform_step(engine, kind) as step:
        if step is None:
            return None
        whole = _repeat(lambda: sum(step.run(now).values()), budget_s / 2)
        with timed_ops(engine.runner, now) as timer:
            runs = _repeat(lambda: timer.split(step.run(now)), budget_s / 2)
    seconds = {op: median(run[op] for run in runs) for op in runs[0]}
    return OpTimes(kind, seconds, median(whole), len(runs))


def time_steps(engine: Engine, kind: StepKind, budget_s: float) -> list[float] | None:
    """Run a step again and again in one piece: model, head and sampling.

    Args:
        engine: Idle; its prefix cache is emptied.
        kind: The step.
        budget_s: Time for all runs; at least ``MIN_RUNS`` after one that is not timed.

    Returns:
        Seconds per run, or None where the engine's limits or page pool do not hold the step.
    """
    now = _clock_of(engine.runner.device)
    with uniform_step(engine, kind) as step:
        if step is None:
            return None
        return _repeat(lambda: sum(step.run(now).values()), budget_s)


def _zeros() -> dict[str, float]:
    return dict.fromkeys(LAYER_OPS, 0.0)


@dataclass(slots=True)
class OpTimer:
    """Adds up the time of each op.

    Args:
        now: Clock in seconds; it waits for the device.
    """

    now: Clock
    seconds: dict[str, float] = field(default_factory=_zeros)

    def timed(self, op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time is added to an op."""

        def call(*args: Any) -> Any:
            start = self.now()
            result = function(*args)
            self.seconds[op] += self.now() - start
            return result

        return call

    def split(self, parts: dict[str, float]) -> dict[str, float]:
        """Divide ``parts["layers"]`` among the ops since the last call, which starts them anew."""
        ops, self.seconds = self.seconds, _zeros()
        rest = {name: spent for name, spent in parts.items() if name != "layers"}
        return {**ops, **rest, BETWEEN: parts["layers"] - sum(ops.values())}


@contextmanager
def timed_ops(runner: ModelRunner, now: Clock) -> Iterator[OpTimer]:
    """Run op by op, each of them timed, until the block ends."""
    timer, ops = OpTimer(now), runner.model.ops
    timed = replace(
        ops,
        add_rms_norm=timer.timed("norm", ops.add_rms_norm),
        rotary_and_write=timer.timed("rotary", ops.rotary_and_write),
        attention=timer.timed("attention", ops.attention),
        gated_activation=timer.timed("activation", ops.gated_activation),
        layer_stack=partial(_timed_stack, timer),
    )
    with runner.using_ops(timed):
        yield timer


class _TimedLinear:
    """A product whose time is added to an op."""

    def __init__(self, timer: OpTimer, op: str, linear: Linear) -> None:
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.num_bytes = linear.num_bytes
        self._multiply = timer.timed(op, linear)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(x)


def _timed_stack(timer: OpTimer, spec: StackSpec, pages: LayerPages, ops: OpSet) -> OpByOpStack:
    layers = [_timed_layer(timer, layer) for layer in spec.layers]
    return OpByOpStack(replace(spec, layers=layers), pages, ops, "every op is timed")


def _timed_layer(timer: OpTimer, layer: LayerWeights) -> LayerWeights:
    return replace(
        layer,
        qkv=_TimedLinear(timer, "qkv", layer.qkv),
        output=_TimedLinear(timer, "output", layer.output),
        mlp=_timed_mlp(timer, layer.mlp),
    )


def _timed_mlp(timer: OpTimer, mlp: Mlp) -> Mlp:
    if not isinstance(mlp, DenseMlp):
        raise MeasurementError(
            "The ops of a mixture of experts (MoE) cannot be timed one by one.",
            field="model",
            remedy="Time whole steps.",
        )
    return DenseMlp(
        _TimedLinear(timer, "gate_up", mlp.gate_up), _TimedLinear(timer, "down", mlp.down)
    )


def _repeat(run: Callable[[], R], budget_s: float) -> list[R]:
    """Return the results of as many runs as the budget allows; the first does not count."""
    run()
    results: list[R] = []
    end = time.monotonic() + budget_s
    while len(results) < MIN_RUNS or time.monotonic() < end:
        results.append(run())
    return results


def _clock_of(device: torch.device) -> Clock:
    """Return a clock that first waits for the device."""
    if device.type != "cuda":
        return time.perf_counter

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now
