"""What speculation gains, by formula (Leviathan et al., 2022, arXiv 2211.17192).

One pass of the target model verifies ``length`` guesses. ``alpha`` is the probability that a guess
is kept when those before it were, taken as independent of the position; ``cost`` is the time of one
guess over the time of one pass of the target.

    tokens per pass   E = (1 - alpha^(length + 1)) / (1 - alpha)     the token after them included
    guesses kept      E - 1
    speed-up          S = E / (length * cost + 1)

A measured alpha is an average over positions and texts, so measured tokens per pass are reported
beside E, never replaced by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from infopt.errors import ConfigError


def expected_tokens(alpha: float, length: int) -> float:
    """Return the mean tokens that a pass gives, between 1 and ``length + 1``.

    Raises:
        ConfigError: ``alpha`` is outside 0 .. 1 or ``length`` below 0.
    """
    _check("alpha", alpha, high=1.0)
    if length < 0:
        raise ConfigError(f"length must be >= 0, got {length}.", field="length", value=length)
    # A sum, not the closed form: exact at alpha = 1, and nothing cancels close to it.
    return math.fsum(alpha**kept for kept in range(length + 1))


def expected_kept(alpha: float, length: int) -> float:
    """Return the mean guesses that a pass keeps (the token after them left out)."""
    return expected_tokens(alpha, length) - 1.0


def speedup(alpha: float, length: int, cost: float, verify_cost: float = 1.0) -> float:
    """Return decoding time without guesses over the time with them.

    Args:
        alpha: Probability that a guess is kept.
        length: Guesses per pass.
        cost: Time of one guess over that of a pass with one token.
        verify_cost: Time of a pass with ``length + 1`` tokens over that of one with one token; 1
            where a pass is limited by reading weights.
    """
    _check("cost", cost)
    _check("verify_cost", verify_cost)
    return expected_tokens(alpha, length) / (length * cost + verify_cost)


def operations_factor(alpha: float, length: int, cost: float) -> float:
    """Return arithmetic operations per token over those without guesses.

    Args:
        alpha: Probability that a guess is kept.
        length: Guesses per pass.
        cost: Operations of one guess over those of one token of the target.
    """
    _check("cost", cost)
    return (length * cost + length + 1) / expected_tokens(alpha, length)


def pays(alpha: float, cost: float) -> bool:
    """Whether any length gains: one guess does if, and only if, alpha is above its cost."""
    _check("alpha", alpha, high=1.0)
    _check("cost", cost)
    return alpha > cost


def best_length(alpha: float, cost: float, longest: int) -> int:
    """Return the length with the highest speed-up, 0 where none gains; of equals the shortest."""
    return max(range(longest + 1), key=lambda length: (speedup(alpha, length, cost), -length))


def acceptance(target: Sequence[float], draft: Sequence[float]) -> float:
    """Return the probability that a guess drawn from ``draft`` is kept: 1 - total variation.

    Args:
        target: Probabilities of the target, after all filters.
        draft: Probabilities that the guess was really drawn from, after all filters.
    """
    return math.fsum(min(p, q) for p, q in zip(target, draft, strict=True))


def residual(target: Sequence[float], draft: Sequence[float]) -> list[float]:
    """Return the distribution that replaces a rejected guess: the target's excess, normalised.

    Where nothing is ever rejected (equal distributions) it is the target itself.
    """
    excess = [max(p - q, 0.0) for p, q in zip(target, draft, strict=True)]
    total = math.fsum(excess)
    return [value / total for value in excess] if total else list(target)


def output_law(target: Sequence[float], draft: Sequence[float]) -> list[float]:
    """Return the distribution of the token that comes out: the target's, whatever the draft."""
    rejected = 1.0 - acceptance(target, draft)
    pairs = zip(target, draft, residual(target, draft), strict=True)
    return [min(p, q) + rejected * r for p, q, r in pairs]


def _check(name: str, value: float, high: float = math.inf) -> None:
    if not (0.0 <= value <= high and math.isfinite(value)):
        limit = f" and <= {high:g}" if math.isfinite(high) else ""
        raise ConfigError(f"{name} must be >= 0{limit}, got {value!r}.", field=name, value=value)
