"""Decode steps of a candidate against the reference's, by sequences of the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infopt.bench.moe_pair import DecodePoint, compare_decoding, predicted_ratio
from infopt.experiments.arms import Arm, make_requests
from infopt.experiments.machine import machine_peaks, precision_of
from infopt.experiments.measures import BATCH_CURVE, BatchOptions, read_options
from infopt.llm import LLM
from infopt.models.config import ModelConfig

COLUMNS = ("batch", "ratio", "low", "high", "num_pairs", "reference_s", "step_s", "predicted")
"""Sequences, time over the reference's with its 95 % interval and pairs, both times, by formula."""


class BatchCurve:
    """Lets candidate and reference decode the same text in turn, batch by batch.

    Args:
        options: See `BatchOptions`.
        seed: Of the text.
    """

    def __init__(self, options: Mapping[str, Any], seed: int) -> None:
        """Check the options."""
        self._options, self._seed = read_options(BatchOptions, options, BATCH_CURVE), seed

    def probe(self, arm: Arm, reference: Arm | None) -> dict[str, Any]:
        """Return ``batch_curve.<column>`` with one entry per batch; the reference has none."""
        if reference is None:
            return {}
        rows = [self._row(arm, reference, batch) for batch in self._options.batches]
        columns = zip(*rows, strict=True)
        names = [f"batch_curve.{name}" for name in COLUMNS]
        return {"samples": dict(zip(names, map(list, columns), strict=True))}

    def _row(self, arm: Arm, reference: Arm, batch: int) -> tuple[float | None, ...]:
        options = self._options
        workload = {
            "kind": "synthetic",
            "num_requests": batch,
            "prompt_tokens": options.prompt_tokens,
            "output_tokens": options.output_tokens,
        }
        requests = make_requests(reference.llm, workload, self._seed)
        point = compare_decoding(reference.llm, arm.llm, requests, options.repeats)
        ratio = point.ratio
        return (
            *(batch, ratio.median, ratio.low, ratio.high, ratio.num_pairs),
            *(point.reference_s, point.step_s, _predicted(arm, reference, point)),
        )


def _predicted(arm: Arm, reference: Arm, point: DecodePoint) -> float | None:
    """Return the ratio by formula; None for models without a count, or a sparse reference."""
    own, base = arm.llm.model_config, reference.llm.model_config
    if not isinstance(own, ModelConfig) or not isinstance(base, ModelConfig) or base.moe:
        return None
    return predicted_ratio(own, base, point.batch, ridge_tokens(reference.llm))


def ridge_tokens(llm: LLM) -> float | None:
    """Return the tokens of a step from which a dense model computes longer than it reads.

    Two operations per weight and token: half the machine's FLOP per byte times the bytes of a
    weight. None where the machine's limits are not known.
    """
    intensity = machine_peaks(llm).ridge_flops_per_byte
    return None if intensity is None else intensity * precision_of(llm).weight_bytes / 2
