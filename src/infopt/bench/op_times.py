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

from infopt.bench.roofline_ops import LAYER_OPS, StepSize
from infopt.engine.engine import Engine
from infopt.engine.runner import ModelRunner
from infopt.engine.sampler import SamplingRow, sample
from infopt.engine.sequence import Sequence
from infopt.engine.step_plan import ScheduledSequence, StepPlan
from infopt.errors import MeasurementError
from infopt.models.config import ModelConfig
from infopt.ops import OpSet
from infopt.ops.layer_stack import LayerPages, LayerWeights, OpByOpStack, StackSpec
from infopt.ops.linear import Linear
from infopt.ops.mlp import DenseMlp, Mlp
from infopt.outputs import RequestMetrics
from infopt.sampling_params import SamplingParams

BETWEEN = "between"
"""What a forward pass spends outside its ops: embedding, rotary tables, Python."""

MIN_RUNS = 3

_CHUNK = 256
"""Tokens of a sequence that are cached at a time."""

Clock = Callable[[], float]
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StepKind:
    """A step of equal sequences.

    Attributes:
        num_seqs: Sequences.
        num_cached: Tokens of each that count as computed.
        num_new: Tokens of each that the step computes.
    """

    num_seqs: int
    num_cached: int
    num_new: int = 1

    @property
    def length(self) -> int:
        """Tokens of a sequence after the step."""
        return self.num_cached + self.num_new

    def size(self, config: ModelConfig) -> StepSize:
        """Return what its ops work on."""
        return StepSize.uniform(config, self.num_seqs, self.num_cached, self.num_new)


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
    with _step_of(engine, kind) as step:
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
    with _step_of(engine, kind) as step:
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


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that can be run again: it computes the same tokens into the same slots."""

    engine: Engine
    plan: StepPlan
    rows: list[int]

    def run(self, now: Clock) -> dict[str, float]:
        """Run it and return the seconds of layers, head and sampling."""
        runner = self.engine.runner
        ctx = runner.build(self.plan, self.rows)
        start = now()
        hidden = runner.hidden(ctx)
        layers = now()
        logits = torch.cat(list(runner.logit_blocks(hidden)))
        head = now()
        sample(logits, self._sampling_rows())
        return {"layers": layers - start, "head": head - layers, "sampling": now() - head}

    def _sampling_rows(self) -> list[SamplingRow]:
        ends = self.engine.runner.model.config.eos_token_ids
        return [SamplingRow.of(item.sequence, ends) for item in self.plan.scheduled]


@contextmanager
def _step_of(engine: Engine, kind: StepKind) -> Iterator[_Step | None]:
    """Give the sequences of a step their pages until the block ends."""
    engine.reset_prefix_cache()
    sequences = [_sequence(engine, kind, index) for index in range(kind.num_seqs)]
    rows = [(index + 1) * kind.num_new - 1 for index in range(kind.num_seqs)]
    scheduled = [ScheduledSequence(s, kind.num_cached, kind.num_new) for s in sequences]
    try:
        yield _Step(engine, StepPlan(scheduled), rows) if _fits(engine, kind, sequences) else None
    finally:
        for sequence in sequences:
            engine.cache.free(sequence.cache)


def _fits(engine: Engine, kind: StepKind, sequences: list[Sequence]) -> bool:
    """Allocate the pages; tell whether this is a step that the engine could run."""
    config = engine.config
    return (
        kind.num_seqs <= config.max_num_seqs
        and kind.num_seqs * kind.num_new <= config.max_num_batched_tokens
        and kind.length <= engine.checker.max_model_len
        and all(_fill(engine, sequence, kind) for sequence in sequences)
    )


def _fill(engine: Engine, sequence: Sequence, kind: StepKind) -> bool:
    """Give a sequence the pages it would have if its cached tokens had been computed in chunks."""
    cache, tokens = engine.cache, sequence.token_ids
    for end in range(_CHUNK, kind.num_cached + _CHUNK, _CHUNK):
        num_tokens = min(end, kind.num_cached)
        if not cache.allocate(sequence.cache, num_tokens):
            return False
        cache.commit(sequence.cache, tokens, num_tokens)
    return cache.allocate(sequence.cache, kind.length)


def _sequence(engine: Engine, kind: StepKind, index: int) -> Sequence:
    vocab = engine.runner.model.config.num_real_tokens
    return Sequence(
        seq_id=index,
        request_id=f"step-{index}",
        index=0,
        token_ids=[(7 * index + position) % vocab for position in range(kind.length)],
        num_prompt_tokens=kind.length,
        params=SamplingParams(temperature=0),
        seed=0,
        max_tokens=1,
        cache=engine.cache.new_sequence(),
        metrics=RequestMetrics(arrival_s=0.0),
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
