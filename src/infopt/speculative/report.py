"""What speculation did so far, beside what the formula says of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from infopt.engine.draft_control import DraftControl
from infopt.engine.draft_stats import DraftStats
from infopt.speculative.config import read_options
from infopt.speculative.theory import expected_tokens


def describe_speculation(
    options: Mapping[str, Any] | None,
    stats: DraftStats | None,
    control: DraftControl | None = None,
) -> dict[str, Any] | None:
    """Return counters and rates as plain data; None where nothing is drafted.

    ``tokens_per_pass`` counts all decoding passes, ``tokens_per_drafted_pass`` those that verified
    guesses, the token after the guesses included in both. ``formula_tokens_per_drafted_pass`` is
    (1 - alpha^(n + 1)) / (1 - alpha) at the measured alpha, averaged over the lengths n that
    occurred: the difference to the measured value shows how far guesses are from independent.
    ``draft_cost`` and ``verify_cost`` are in decode steps without guesses, of the same run;
    ``formula_speedup`` is what Leviathan's formula makes of these figures, for all passes together.
    ``controller`` says what was decided where somebody decides (method ``auto``).
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
        "draft_s": stats.draft_s,
        "draft_cost": stats.draft_cost,
        "verify_cost": stats.verify_cost,
        "formula_speedup": formula_speedup(stats),
        "controller": control.describe() if control is not None else None,
    }


def formula_speedup(stats: DraftStats) -> float | None:
    """Return the speed-up of decoding by formula, from measured acceptance and costs.

    Passes with guesses take ``verify_cost + length * draft_cost`` plain steps and give what the
    formula says, passes without give one token and take one step, and what asking in vain took.
    None where plain or drafted decode steps are missing.
    """
    tokens, plain, drafted = _formula(stats), stats.plain, stats.drafted
    if tokens is None or not plain.mean_step_s or not drafted.num_steps:
        return None
    share = stats.num_drafted_passes / (stats.num_drafted_passes + stats.num_plain_passes)
    per_pass = share * tokens + 1 - share
    spent_s = plain.step_s + plain.draft_s + drafted.step_s + drafted.draft_s
    return per_pass * plain.mean_step_s * (plain.num_steps + drafted.num_steps) / spent_s


def _formula(stats: DraftStats) -> float | None:
    alpha, lengths = stats.alpha, stats.passes_by_length
    if alpha is None:
        return None
    total = sum(count * expected_tokens(alpha, length) for length, count in lengths.items())
    return total / sum(lengths.values())
