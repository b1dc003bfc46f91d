"""What the counts of a run say about its experts: balance, distinct experts of a step, locality."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from infopt.engine.expert_counts import DistinctCounts, ExpertCounts
from infopt.moe.theory import (
    distinct_experts,
    imbalance,
    jain_index,
    load_entropy,
    most_distinct_experts,
)


@dataclass(frozen=True, slots=True)
class LayerLoad:
    """How the tokens of a layer were spread over its experts.

    Attributes:
        layer: Index of the layer.
        load: Tokens that went to each expert.
        decode_load: Of those, tokens of decoding.
        jain: Jain's index of the load, 1 (equal) to 1 / E; None before the first token.
        imbalance: Largest over mean load.
        entropy: Entropy of the load over log E.
        same_first: Share of tokens whose best expert is that of the token before.
    """

    layer: int
    load: list[int]
    decode_load: list[int]
    jain: float | None
    imbalance: float | None
    entropy: float | None
    same_first: float | None


@dataclass(frozen=True, slots=True)
class DistinctExperts:
    """Steps of equally many rows, and how many experts of a layer they touched.

    Attributes:
        rows: Tokens of the step, padding apart.
        steps: Such steps.
        mean: Distinct experts, mean over steps and layers.
        most: Largest number in one layer of one step.
        formula: Expected where tokens choose evenly and independently.
        bound: What no step can exceed, min(E, k * rows).
    """

    rows: int
    steps: int
    mean: float
    most: int
    formula: float
    bound: int


@dataclass(frozen=True, slots=True)
class Locality:
    """Whether tokens go where the token before them in their sequence went; means over layers.

    Attributes:
        pairs: Tokens compared with the one before.
        same_first: Share of tokens with the same best expert; None without pairs.
        chance: The same for even, independent choices: 1 / E.
        chance_by_load: The same for independent choices with the measured loads of best experts:
            what is above it is not a matter of favourites.
        overlap: Share of a token's experts that the token before had, too.
        overlap_chance: The same for even, independent choices: k / E.
    """

    pairs: int
    same_first: float | None
    chance: float
    chance_by_load: float | None
    overlap: float | None
    overlap_chance: float


@dataclass(frozen=True, slots=True)
class ExpertStatistics:
    """Where the tokens of an engine went since its start.

    Attributes:
        num_experts: Experts of a layer, E.
        top_k: Experts of a token, k.
        layers: Each layer that has experts.
        distinct_by_rows: Steps that only decoded, by their rows.
        distinct_by_rows_prefill: Steps that computed tokens of prompts.
        locality: Tokens against the tokens before them.
        prefill_tokens: Tokens of prompts that were counted.
        decode_tokens: Tokens of decoding, guesses that were verified included.
    """

    num_experts: int
    top_k: int
    layers: list[LayerLoad]
    distinct_by_rows: list[DistinctExperts]
    distinct_by_rows_prefill: list[DistinctExperts]
    locality: Locality
    prefill_tokens: int
    decode_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self)


def expert_statistics(counts: ExpertCounts | None) -> ExpertStatistics | None:
    """Work out the statistics of an engine.

    Args:
        counts: ``Engine.expert_counts``.

    Returns:
        None where nothing is counted: a dense model, or ``expert_stats`` is off.
    """
    if counts is None:
        return None
    prefill, decode = counts.distinct
    return ExpertStatistics(
        num_experts=counts.moe.num_experts,
        top_k=counts.moe.top_k,
        layers=[_layer(counts, place) for place in range(len(counts.layers))],
        distinct_by_rows=_distinct(counts, decode),
        distinct_by_rows_prefill=_distinct(counts, prefill),
        locality=_locality(counts),
        prefill_tokens=counts.num_tokens[0],
        decode_tokens=counts.num_tokens[1],
    )


def describe_experts(counts: ExpertCounts | None) -> dict[str, Any] | None:
    """Return the statistics as plain data; None where nothing is counted."""
    found = expert_statistics(counts)
    return None if found is None else found.to_dict()


def _layer(counts: ExpertCounts, place: int) -> LayerLoad:
    load: list[int] = counts.load[:, place].sum(0).tolist()
    is_known = any(load)
    same = int(counts.same_first[place])
    return LayerLoad(
        layer=counts.layers[place],
        load=load,
        decode_load=counts.load[1, place].tolist(),
        jain=jain_index(load) if is_known else None,
        imbalance=imbalance(load) if is_known else None,
        entropy=load_entropy(load) if is_known else None,
        same_first=same / counts.num_pairs if counts.num_pairs else None,
    )


def _distinct(counts: ExpertCounts, by_rows: Mapping[int, DistinctCounts]) -> list[DistinctExperts]:
    num_experts, top_k = counts.moe.num_experts, counts.moe.top_k
    return [
        DistinctExperts(
            rows=rows,
            steps=found.num_steps,
            mean=found.total / (found.num_steps * len(counts.layers)),
            most=found.most,
            formula=distinct_experts(num_experts, top_k, rows),
            bound=most_distinct_experts(num_experts, top_k, rows),
        )
        for rows, found in sorted(by_rows.items())
    ]


def _locality(counts: ExpertCounts) -> Locality:
    num_experts, top_k, pairs = counts.moe.num_experts, counts.moe.top_k, counts.num_pairs
    return Locality(
        pairs=pairs,
        same_first=_mean_share(counts.same_first, pairs),
        chance=1 / num_experts,
        chance_by_load=_chance_by_load(counts.first) if pairs else None,
        overlap=_mean_share(counts.repeated, pairs * top_k),
        overlap_chance=top_k / num_experts,
    )


def _mean_share(counted: torch.Tensor, whole: int) -> float | None:
    """Return the mean over layers of what was counted over what could be."""
    return int(counted.sum()) / (whole * len(counted)) if whole else None


def _chance_by_load(first: torch.Tensor) -> float:
    """Return the chance that two independent tokens have the same best expert."""
    shares = (first.double() / first.sum(1, keepdim=True)).square().sum(1)
    return math.fsum(shares.tolist()) / len(shares)
