"""What speculation did so far, beside what the formula says of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from infopt.engine.draft_stats import DraftStats
from infopt.speculative.config import read_options
from infopt.speculative.theory import expected_tokens


def describe_speculation(
    options: Mapping[str, Any] | None, stats: DraftStats | None
) -> dict[str, Any] | None:
    """Return counters and rates as plain data; None where nothing is drafted.

    ``tokens_per_pass`` counts all decoding passes, ``tokens_per_drafted_pass`` those that verified
    guesses, the token after the guesses included in both. ``formula_tokens_per_drafted_pass`` is
    (1 - alpha^(n + 1)) / (1 - alpha) at the measured alpha, averaged over the lengths n that
    occurred: the difference to the measured value shows how far guesses are from independent.
    """
    if options is None or stats is None:
        return None
    return {
        "method": options["method"],
        **dataclasses.asdict(read_options(options)),
        "drafted_passes": stats.num_drafted_passes,
        "plain_passes": stats.num_plain_passes,
        "proposed_tokens": stats.num_proposed,
        "accepted_tokens": stats.num_accepted,
        "emitted_tokens": stats.num_emitted,
        "acceptance_rate": stats.acceptance_rate,
        "acceptance_by_position": stats.acceptance_by_position,
        "alpha": stats.alpha,
        "tokens_per_drafted_pass": stats.tokens_per_drafted_pass,
        "tokens_per_pass": stats.tokens_per_pass,
        "formula_tokens_per_drafted_pass": _formula(stats),
    }


def _formula(stats: DraftStats) -> float | None:
    alpha, lengths = stats.alpha, stats.passes_by_length
    if alpha is None:
        return None
    total = sum(count * expected_tokens(alpha, length) for length, count in lengths.items())
    return total / sum(lengths.values())
