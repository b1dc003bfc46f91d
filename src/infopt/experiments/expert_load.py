"""Who goes to which expert: loads on documentation and code, distinct experts, locality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infopt.bench.workloads import build_workload
from infopt.corpus import Kind
from infopt.errors import MeasurementError
from infopt.experiments.arms import Arm, serve
from infopt.experiments.measures import EXPERT_LOAD, LoadOptions, read_options
from infopt.llm import LLM
from infopt.moe.statistics import ExpertStatistics, expert_statistics

KINDS: tuple[Kind, ...] = ("docs", "code")


class ExpertLoad:
    """Lets a candidate that counts its experts (``expert_stats``) continue held-out text.

    Args:
        options: See `LoadOptions`.
        seed: Of the text.
    """

    def __init__(self, options: Mapping[str, Any], seed: int) -> None:
        """Check the options."""
        self._options, self._seed = read_options(LoadOptions, options, EXPERT_LOAD), seed

    def probe(self, arm: Arm, reference: Arm | None) -> dict[str, Any]:
        """Return loads, balance and distinct experts by kind of text.

        Samples ``load.<kind>.*`` have an entry per layer and expert, ``balance.<kind>.*`` one per
        layer, ``distinct.<kind>.*`` one per number of rows of decode steps. A candidate that does
        not count has none.
        """
        del reference
        if not arm.llm.config.expert_stats:
            return {}
        samples: dict[str, list[Any]] = {}
        extra: dict[str, Any] = {}
        for kind in KINDS:
            found = self._count(arm, kind)
            samples |= _columns(kind, found)
            extra |= _figures(kind, found)
        return {"samples": samples, "extra": extra}

    def _count(self, arm: Arm, kind: Kind) -> ExpertStatistics:
        """Serve one kind of text with an engine of its own, whose counts begin at nothing."""
        options = self._options
        with LLM(config=arm.llm.config) as llm:
            for batch in options.batches:
                workload = {
                    "kind": "synthetic",
                    "num_requests": batch,
                    "prompt_tokens": options.prompt_tokens,
                    "output_tokens": options.output_tokens,
                }
                requests = build_workload(
                    workload,
                    tokenizer=llm.tokenizer,
                    seed=self._seed,
                    text_kind=kind,
                    text_split="heldout",
                )
                serve(llm, requests, "closed")
            found = expert_statistics(llm.engine.expert_counts)
        if found is None:
            raise MeasurementError(
                "The model has no experts to count.",
                field=EXPERT_LOAD,
                value=arm.llm.config.model,
                remedy="Give the slice a mixture of experts.",
            )
        return found


def _columns(kind: Kind, found: ExpertStatistics) -> dict[str, list[Any]]:
    loads = [(layer.layer, e, n) for layer in found.layers for e, n in enumerate(layer.load)]
    balance = [(x.layer, x.jain, x.imbalance, x.entropy, x.same_first) for x in found.layers]
    distinct = [
        (x.rows, x.steps, x.mean, x.most, x.formula, x.bound) for x in found.distinct_by_rows
    ]
    tables = {
        "load": (("layer", "expert", "tokens"), loads),
        "balance": (("layer", "jain", "imbalance", "entropy", "same_first"), balance),
        "distinct": (("rows", "steps", "mean", "most", "formula", "bound"), distinct),
    }
    return {
        f"{table}.{kind}.{name}": [row[place] for row in rows]
        for table, (names, rows) in tables.items()
        for place, name in enumerate(names)
    }


def _figures(kind: Kind, found: ExpertStatistics) -> dict[str, Any]:
    places = found.locality
    return {
        f"experts_{kind}_{name}": value
        for name, value in {
            "prefill_tokens": found.prefill_tokens,
            "decode_tokens": found.decode_tokens,
            "same_first": places.same_first,
            "chance": places.chance,
            "chance_by_load": places.chance_by_load,
            "overlap": places.overlap,
            "overlap_chance": places.overlap_chance,
        }.items()
    }
