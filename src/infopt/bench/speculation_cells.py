"""What speculation gains on one kind of traffic: paired ratios, and what the formula says of them.

A *cell* is a workload at a number of requests at once and a temperature. A target without guesses
and one with them serve its requests in turn; the ratio is that of their decode rates, tokens per
second of the steps that do nothing but decode, so that prompts, which guesses do not touch, dilute
nothing. Prompts stay in the prefix cache from the warm-up on.

A model that loops is copied perfectly. So the target first answers more requests than are needed,
and those whose answers are degenerate are set apart: they are never part of a gain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from infopt.bench.closed import run_closed_loop
from infopt.bench.degenerate import is_degenerate
from infopt.bench.load_result import LoadResult
from infopt.bench.paired import run_paired
from infopt.bench.stats import PairedRatio
from infopt.bench.workload_types import WorkloadRequest
from infopt.bench.workloads import build_workload
from infopt.engine.draft_stats import DraftStats
from infopt.engine.stats import StepStats
from infopt.errors import MeasurementError
from infopt.llm import LLM
from infopt.sampling_params import SamplingParams
from infopt.speculative.theory import expected_tokens

MIN_REQUESTS = 2
"""Requests of a cell with fewer at once: one text is no traffic."""
_POOL_SHARE = 1.5
"""Requests answered to find enough whose answers are not degenerate."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of traffic.

    Attributes:
        workload: Its name.
        batch: Requests at once.
        temperature: Of all of them.
        is_degenerate: Whether its answers are the looping ones.
    """

    workload: str
    batch: int
    temperature: float = 0.0
    is_degenerate: bool = False

    @property
    def params(self) -> SamplingParams:
        """How its requests are sampled; the same seed for both arms."""
        return SamplingParams(temperature=self.temperature, seed=17)

    @property
    def num_requests(self) -> int:
        """Requests of a run."""
        return max(self.batch, MIN_REQUESTS)


@dataclass(frozen=True, slots=True)
class Pool:
    """Requests of a workload, told apart by what the target answers.

    Attributes:
        sound: With answers that are not degenerate.
        looping: The others.
    """

    sound: list[WorkloadRequest]
    looping: list[WorkloadRequest]

    def take(self, cell: Cell) -> list[WorkloadRequest]:
        """Return the requests of a cell; where there are too few they come again."""
        source = self.looping if cell.is_degenerate else self.sound
        return [
            dataclasses.replace(source[i % len(source)], request_id=f"{cell.workload}-{i}")
            for i in range(cell.num_requests if source else 0)
        ]


@dataclass(frozen=True, slots=True)
class CellResult:
    """A measured cell.

    Attributes:
        cell: Which.
        ratio: Decode rate with guesses over that without.
        reference_rate: Decode rate without, tokens/s (median of the runs).
        num_distinct: Different requests in it.
        looping_share: Share of measured answers that turned out degenerate.
        alpha: Share of guesses kept of those whose predecessors were (None: there were none).
        mean_length: Guesses per pass that verified some.
        drafted_share: Share of passes that verified some.
        tokens_per_pass: Over all decoding passes.
        draft_cost: Time of proposing per step, in steps of the reference.
        verify_cost: Time of a step without proposing, in steps of the reference.
        formula: Leviathan's speed-up at the measured alpha, lengths and cost of proposing, with
            verifying as long as a plain step.
        predicted: The same with the measured time of verifying.
        proposed: Guesses verified, by position.
        accepted: Of those, guesses kept.
        decisions: Steps by what was decided, where somebody decides.
    """

    cell: Cell
    ratio: PairedRatio
    reference_rate: float
    num_distinct: int
    looping_share: float
    alpha: float | None
    mean_length: float | None
    drafted_share: float
    tokens_per_pass: float
    draft_cost: float
    verify_cost: float
    formula: float
    predicted: float
    proposed: list[int]
    accepted: list[int]
    decisions: Mapping[str, int]


def sort_requests(
    llm: LLM, workload: Mapping[str, Any], cell: Cell, num_needed: int, seed: int = 0
) -> Pool:
    """Let the target answer more requests than are needed, and tell which answers loop.

    Args:
        llm: The target without guesses.
        workload: Options of the workload; their number of requests does not count.
        cell: Gives the temperature.
        num_needed: Most requests that a cell takes.
        seed: Of the workload.
    """
    options = {**workload, "num_requests": round(num_needed * _POOL_SHARE) + MIN_REQUESTS}
    requests = build_workload(options, tokenizer=llm.tokenizer, seed=seed)
    together = min(len(requests), llm.config.max_num_seqs)
    result = run_closed_loop(llm, requests, concurrency=together, params=cell.params)
    check_answers(result)
    loops = [is_degenerate(answer) for answer in _answers(result)]
    return Pool(
        [r for r, loop in zip(requests, loops, strict=True) if not loop],
        [r for r, loop in zip(requests, loops, strict=True) if loop],
    )


def measure_cell(
    reference: LLM, llm: LLM, cell: Cell, requests: Sequence[WorkloadRequest], repeats: int
) -> CellResult:
    """Let both serve the requests in turn.

    Args:
        reference: Without guesses.
        llm: With them.
        cell: What is measured.
        requests: Its requests, from `Pool.take`.
        repeats: Measured pairs; one more warms up.
    """
    arms = {"off": _Arm(reference, cell, requests), "on": _Arm(llm, cell, requests)}
    paired = run_paired({name: arm.run for name, arm in arms.items()}, "off", repeats)
    return _result(cell, arms, paired.ratios["on"], paired.interval("off").estimate)


def check_answers(result: LoadResult) -> None:
    """Refuse a run with requests that have no answer.

    Raises:
        MeasurementError: Says how many and why.
    """
    bad = {k: n for k, n in result.status_counts.items() if k != "completed" and n}
    if bad:
        errors = sorted({r.error for r in result.records if r.error})
        raise MeasurementError(
            f"Requests without an answer: {bad}. {' '.join(errors[:1])}".strip(),
            field="workload",
            value=bad,
            remedy="Give the engine a larger pool or max_model_len.",
        )


class _Arm:
    """One side of a pair: serves the requests and keeps steps, answers and counters."""

    def __init__(self, llm: LLM, cell: Cell, requests: Sequence[WorkloadRequest]) -> None:
        self.llm, self._cell, self._requests = llm, cell, requests
        self._is_warm = False
        self.runs: list[list[StepStats]] = []
        self.loops: list[bool] = []

    def run(self) -> float:
        """Return the decode rate of one run, tokens per second."""
        result = run_closed_loop(
            self.llm,
            self._requests,
            concurrency=self._cell.batch,
            params=self._cell.params,
            reset_prefix_cache=not self._is_warm,
        )
        check_answers(result)
        steps = decode_steps(result)
        if self._is_warm:
            self.runs.append(steps)
            self.loops += [is_degenerate(answer) for answer in _answers(result)]
        else:
            self._is_warm = True
            self.llm.engine.reset_stats()
        return decode_rate(steps)


def decode_steps(result: LoadResult) -> list[StepStats]:
    """Return the steps that did nothing but decode."""
    return [s for s in result.step_log if s.num_decode_tokens and not s.num_prefill_tokens]


def decode_rate(steps: Sequence[StepStats]) -> float:
    """Return tokens per second of steps."""
    seconds = sum(s.duration_s for s in steps)
    if not seconds:
        raise MeasurementError(
            "No step did nothing but decode.",
            field="workload",
            value=len(steps),
            remedy="Ask for more output tokens.",
        )
    return sum(s.num_decode_tokens + s.num_accepted_tokens for s in steps) / seconds


def _result(
    cell: Cell, arms: Mapping[str, _Arm], ratio: PairedRatio, reference_rate: float
) -> CellResult:
    on = arms["on"]
    plain_s = _step_s(arms["off"].runs, cell.batch, lambda s: s.duration_s)
    step_s = _step_s(on.runs, cell.batch, lambda s: s.duration_s)
    draft_s = _step_s(on.runs, cell.batch, lambda s: s.draft_s)
    stats = on.llm.engine.draft_stats or DraftStats()
    num_passes = stats.num_drafted_passes + stats.num_plain_passes
    by_formula = formula_tokens(stats)
    described = on.llm.engine.scheduler.control.describe()
    decisions = described["decisions"] if described else {}
    return CellResult(
        cell=cell,
        ratio=ratio,
        reference_rate=reference_rate,
        num_distinct=len({tuple(r.prompt_token_ids) for r in on._requests}),
        looping_share=sum(on.loops) / len(on.loops),
        alpha=stats.alpha,
        mean_length=stats.mean_length,
        drafted_share=stats.num_drafted_passes / num_passes if num_passes else 0.0,
        tokens_per_pass=stats.tokens_per_pass or 1.0,
        draft_cost=draft_s / plain_s,
        verify_cost=(step_s - draft_s) / plain_s,
        formula=by_formula / (1 + draft_s / plain_s),
        predicted=by_formula * plain_s / step_s,
        proposed=list(stats.proposed),
        accepted=list(stats.accepted),
        decisions=decisions,
    )


def formula_tokens(stats: DraftStats) -> float:
    """Return tokens per decoding pass by the formula, at the measured alpha and lengths."""
    num_passes = stats.num_drafted_passes + stats.num_plain_passes
    if stats.alpha is None or not num_passes:
        return 1.0
    drafted = sum(
        count * expected_tokens(stats.alpha, length)
        for length, count in stats.passes_by_length.items()
    )
    return (drafted + num_passes - sum(stats.passes_by_length.values())) / num_passes


def _step_s(
    runs: Sequence[Sequence[StepStats]], batch: int, get: Callable[[StepStats], float]
) -> float:
    """Return a time per step: the mean of each run, the median of all runs, as of the ratios.

    Requests end, so steps shrink: those of the whole batch count, where there are any.
    """
    full = [[s for s in steps if s.num_seqs == batch] or steps for steps in runs]
    return median(fmean(map(get, steps)) for steps in full)


def _answers(result: LoadResult) -> list[list[int]]:
    return [r.output.outputs[0].token_ids if r.output else [] for r in result.records]
