"""Stage `kv_cache`: what compressing keys and values saves, what it loses, and when it matters.

Quality is judged behind long prompts (`infopt.evals.long_text`): that is where a compressed cache
differs. A slice can also count the sequences that a fixed pool holds, time decode steps over the
length of the context, or see what sharing prefixes saves; its options say which.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infopt.bench.kv_capacity import measure_capacity, rules_of
from infopt.cache.memory_model import rows_kept
from infopt.evals.long_text import LongReport, LongText, judge_logits, run_long_text, same_answers
from infopt.evals.tasks import TaskResult, compare_outcomes
from infopt.experiments.arms import Arm
from infopt.experiments.context_curve import context_curve
from infopt.experiments.machine import machine_peaks
from infopt.experiments.measures import (
    CAPACITY,
    CURVE,
    LONG_TEXT,
    SHARING,
    CapacityOptions,
    CurveOptions,
    read_options,
)
from infopt.experiments.sharing import sharing_probe
from infopt.experiments.slice_spec import SliceSpec
from infopt.experiments.slices import Probe, run_slice
from infopt.llm import LLM


def run(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Run what is missing of the slice and return its manifest."""
    probes: list[Probe] = [compression_probe]
    options = spec.options
    if options.get(LONG_TEXT) is not None:
        probes.append(LongQuality(spec, num_threads).probe)
    if options.get(CAPACITY) is not None:
        probes.append(capacity_probe(options[CAPACITY]))
    if options.get(CURVE) is not None:
        probes.append(curve_probe(options[CURVE]))
    if options.get(SHARING):
        probes.append(sharing_probe)
    return run_slice(spec, results_dir, num_threads=num_threads, probes=probes)


def compression_probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
    """Return how keys and values are kept: the form, the rows, and bytes per token of a prompt."""
    del reference
    config, stats = arm.llm.config, arm.llm.stats()
    eviction: Mapping[str, Any] = config.to_dict().get("kv_eviction") or {}
    num_tokens = max(len(r.prompt_token_ids) for requests in arm.requests for r in requests)
    rules, _ = rules_of(arm.llm)
    rows = rows_kept(num_tokens, eviction or None)
    kept = rules.num_bytes(rules.pages(rows)) / num_tokens
    freed = (stats.get("kv_eviction") or {}).get("freed_bytes")
    return {
        "memory": {"freed_bytes": freed if eviction else None},
        "extra": {
            "kv_cache_dtype": config.kv_cache_dtype,
            "kv_eviction": eviction.get("method", "none"),
            "kv_budget": eviction.get("budget", 1.0),
            "kv_rows_share": rows / num_tokens,
            "kv_bytes_kept_per_token": kept,
            "kv_context": num_tokens,
        },
    }


class LongQuality:
    """Quality behind long prompts, counted from a judge that is run once.

    Args:
        spec: The slice.
        num_threads: Compute threads.
    """

    def __init__(self, spec: SliceSpec, num_threads: int | None) -> None:
        """Load nothing yet."""
        self._spec, self._num_threads = spec, num_threads
        self._settings = LongText.from_dict(spec.options[LONG_TEXT])
        self._judge: Any = None
        self._reference: LongReport | None = None

    def probe(self, arm: Arm, reference: Arm | None) -> dict[str, Any]:
        """Measure a candidate, the reference first."""
        base = self._base(reference or arm)
        report = base if reference is None else self._measure(arm.llm)
        return {
            "quality": report.quality.to_dict(),
            "samples": task_samples(report.outcomes),
            "extra": {} if reference is None else task_losses(base.outcomes, report.outcomes),
        }

    def _base(self, reference: Arm) -> LongReport:
        if self._reference is None:
            self._judge = self._judged(reference.llm)
            self._reference = self._measure(reference.llm)
        return self._reference

    def _measure(self, llm: LLM) -> LongReport:
        return run_long_text(llm, self._settings, self._judge)

    def _judged(self, reference: LLM) -> Any:
        if self._spec.quality_reference is None:
            return judge_logits(reference, self._settings)
        config = self._spec.judge_config().replace(num_threads=self._num_threads)
        with LLM(config=config) as llm:
            return judge_logits(llm, self._settings)


def task_samples(outcomes: Mapping[str, TaskResult]) -> dict[str, list[float]]:
    """Return every item of every task: whether it was right, and what its name says of it.

    ``3/length=256/depth=0.5`` becomes an entry in ``passkey.length`` and in ``passkey.depth``.
    """
    samples: dict[str, list[float]] = {}
    for task, result in outcomes.items():
        for outcome in result.outcomes:
            samples.setdefault(f"{task}.correct", []).append(float(outcome.correct))
            for part in outcome.item_id.split("/")[1:]:
                name, _, value = part.partition("=")
                samples.setdefault(f"{task}.{name}", []).append(float(value))
    return samples


def task_losses(
    reference: Mapping[str, TaskResult], candidate: Mapping[str, TaskResult]
) -> dict[str, float]:
    """Return, per task, the items lost and gained, the test of no difference, and equal answers."""
    found: dict[str, float] = {}
    for task, base in reference.items():
        paired = compare_outcomes(base, candidate[task])
        found |= {
            f"{task}_num_lost": paired.num_lost,
            f"{task}_num_gained": paired.num_gained,
            f"{task}_p_value": paired.p_value,
            f"{task}_same_answers": same_answers(base, candidate[task]),
        }
    return found


def capacity_probe(options: Mapping[str, Any]) -> Probe:
    """Return the probe that counts the sequences in the pool.

    Args:
        options: See `CapacityOptions`.
    """
    wanted = read_options(CapacityOptions, options, CAPACITY)

    def probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
        del reference
        found = measure_capacity(arm.llm, wanted.context_tokens)
        named = {f"capacity_{name}": value for name, value in found.to_dict().items()}
        return {"extra": named | {"capacity_context": wanted.context_tokens}}

    return probe


def curve_probe(options: Mapping[str, Any]) -> Probe:
    """Return the probe that times decode steps over the length of the context.

    Args:
        options: See `CurveOptions`.
    """
    wanted = read_options(CurveOptions, options, CURVE)

    def probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
        del reference
        return {"samples": context_curve(arm.llm, machine_peaks(arm.llm), wanted)}

    return probe
