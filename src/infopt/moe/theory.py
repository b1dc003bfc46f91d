"""What a mixture of experts costs, by formula.

A sparse layer has E experts, of which each token goes to k. If tokens choose evenly and
independently, a step of n tokens touches on average

    n_eff = E (1 - ((E - k) / E)^n)                              distinct experts of a layer

and a decode step has to read the weights that all tokens share, and those of the touched experts:

    bytes(n) = shared + L * n_eff * expert          L sparse layers

Real choices are skewed and correlated, so they touch fewer. Loads f (tokens per expert) are judged
by Jain's index J = (sum f)^2 / (E sum f^2), 1 where they are equal and 1 / E where one expert has
all, and by their entropy over its largest value log E.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from infopt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MoeSize:
    """Weights of a mixture of experts, in parameters or in bytes.

    Attributes:
        shared: What every token reads: attention, routers, shared experts, norms, embeddings.
        expert: One expert of one layer.
        num_layers: Layers with experts.
        num_experts: Experts of such a layer.
        top_k: Experts that a token goes to.
    """

    shared: float
    expert: float
    num_layers: int
    num_experts: int
    top_k: int

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: Names field and value.
        """
        _check_choice(self.num_experts, self.top_k)
        for name in ("shared", "expert", "num_layers"):
            value = getattr(self, name)
            if not value >= 0:
                raise ConfigError(f"{name} must be >= 0, got {value!r}.", field=name, value=value)

    @property
    def total(self) -> float:
        """All weights."""
        return self.with_experts(self.num_experts)

    @property
    def active(self) -> float:
        """Those that belong to one token."""
        return self.with_experts(self.top_k)

    def with_experts(self, num_distinct: float) -> float:
        """Return the weights with so many experts in each sparse layer."""
        return self.shared + self.num_layers * num_distinct * self.expert

    def read(self, num_tokens: float) -> float:
        """Return what a step of so many tokens is expected to read."""
        return self.with_experts(distinct_experts(self.num_experts, self.top_k, num_tokens))


def distinct_experts(num_experts: int, top_k: int, num_rows: float) -> float:
    """Return the experts of a layer that a step is expected to touch.

    Args:
        num_experts: Experts of the layer, E.
        top_k: Experts of each token, k.
        num_rows: Tokens of the step.

    Returns:
        E (1 - ((E - k) / E)^n): k for one token, towards E for many; never above min(E, k n).

    Raises:
        ConfigError: Not 1 <= k <= E, or a negative number of tokens.
    """
    _check_choice(num_experts, top_k)
    if not num_rows >= 0:
        raise ConfigError(
            f"num_rows must be >= 0, got {num_rows!r}.", field="num_rows", value=num_rows
        )
    return num_experts * (1 - ((num_experts - top_k) / num_experts) ** num_rows)


def most_distinct_experts(num_experts: int, top_k: int, num_rows: int) -> int:
    """Return the most experts that a step can touch, whatever the tokens choose."""
    _check_choice(num_experts, top_k)
    return min(num_experts, top_k * num_rows)


def time_ratio(
    sparse: MoeSize, dense: float, num_tokens: float, *, ridge_tokens: float | None = None
) -> float:
    """Return the time of a decode step of a mixture over that of a dense model.

    A step takes the longer of reading its weights and of computing with them; keys and values are
    left out. Where the mixture has as many active weights as the dense model, the ratio is 1 for
    one token, highest in the middle, and 1 again where arithmetic limits both.

    Args:
        sparse: The mixture, in the unit of ``dense``.
        dense: The dense model's weights.
        num_tokens: Sequences of the step.
        ridge_tokens: Tokens of a step from which the dense model computes longer than it reads:
            half the machine's FLOP per byte times the bytes of a weight. None: it never does.

    Raises:
        ConfigError: ``dense``, ``num_tokens`` or ``ridge_tokens`` is not above 0.
    """
    for name, value in (
        ("dense", dense),
        ("num_tokens", num_tokens),
        ("ridge_tokens", ridge_tokens),
    ):
        if value is not None and not value > 0:
            raise ConfigError(f"{name} must be > 0, got {value!r}.", field=name, value=value)
    work = 0.0 if ridge_tokens is None else num_tokens / ridge_tokens
    return max(sparse.read(num_tokens), work * sparse.active) / (dense * max(1.0, work))


def jain_index(loads: Sequence[float]) -> float:
    """Return Jain's index of loads: 1 where they are equal, 1 / E where one expert has all.

    Raises:
        ConfigError: No loads, a negative one, or nothing but zeros.
    """
    total = _total(loads)
    return total**2 / (len(loads) * math.fsum(load**2 for load in loads))


def load_entropy(loads: Sequence[float]) -> float:
    """Return the entropy of loads over that of equal ones: 1 where they are equal, 0 at worst.

    Raises:
        ConfigError: No loads, a negative one, or nothing but zeros.
    """
    total = _total(loads)
    if len(loads) == 1:
        return 1.0
    shares = [load / total for load in loads if load]
    # Rounding must not lead outside 0 .. 1.
    entropy = -math.fsum(share * math.log(share) for share in shares) / math.log(len(loads))
    return min(max(entropy, 0.0), 1.0)


def imbalance(loads: Sequence[float]) -> float:
    """Return the largest load over the mean: what the slowest expert waits for.

    Raises:
        ConfigError: No loads, a negative one, or nothing but zeros.
    """
    total = _total(loads)
    return max(loads) * len(loads) / total


def _check_choice(num_experts: int, top_k: int) -> None:
    if not 1 <= top_k <= num_experts:
        raise ConfigError(
            f"top_k must be between 1 and the {num_experts} experts, got {top_k}.",
            field="top_k",
            value=top_k,
        )


def _total(loads: Sequence[float]) -> float:
    if not loads or min(loads) < 0 or not any(loads):
        raise ConfigError(
            f"Loads must be numbers >= 0 with one above 0, got {list(loads)}.",
            field="loads",
            value=list(loads),
            remedy="Count some tokens first.",
        )
    return math.fsum(loads)
