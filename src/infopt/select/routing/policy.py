"""`Policy`: which of two models answers a request.

A policy scores how much a request *needs* the strong model and sends it there from a threshold on.
The score alone makes the curve of quality over the strong model's share; the threshold is a point
on it.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from infopt.errors import ConfigError
from infopt.registry import Registry
from infopt.select.routing.request import Decision, Evidence, RouteRequest


class Policy(Protocol):
    """Chooses a model for a request.

    Attributes:
        evidence: What `decide` must be given.
    """

    evidence: ClassVar[Evidence]

    @property
    def models(self) -> tuple[str, ...]:
        """All models that it may name, the cheap one first."""
        ...

    def decide(self, request: RouteRequest) -> Decision:
        """Choose a model."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPolicy(ABC):
    """A policy between a cheap and a strong model.

    Attributes:
        cheap: Name of the model that answers what is easy.
        strong: Name of the model that answers the rest.
        threshold: Lowest need that goes to the strong model.
    """

    kind: ClassVar[str]
    evidence: ClassVar[Evidence] = "prompt"
    cheap: str
    strong: str
    threshold: float

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: Names the field.
        """
        for name in ("cheap", "strong"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{name} must be a name, got {value!r}.", field=name, value=value)
        if self.cheap == self.strong:
            raise ConfigError(
                f"cheap and strong are both {self.cheap!r}.", field="strong", value=self.strong
            )
        check_number("threshold", self.threshold)

    @property
    def models(self) -> tuple[str, ...]:
        """All models that it may name, the cheap one first."""
        return (self.cheap, self.strong)

    @abstractmethod
    def need(self, request: RouteRequest) -> float:
        """Return how much a request needs the strong model; only the order counts."""

    def decide(self, request: RouteRequest) -> Decision:
        """Choose the strong model from the threshold on."""
        need = self.need(request)
        model = self.strong if need >= self.threshold else self.cheap
        sign = ">=" if need >= self.threshold else "<"
        return Decision(
            model, self.kind, f"{self.kind}: need {need:.4g} {sign} {self.threshold:.4g}"
        )

    def at(self, threshold: float) -> Self:
        """Return the same policy with another threshold."""
        return dataclasses.replace(self, threshold=threshold)


POLICIES: Registry[type[PairPolicy]] = Registry("routing policy")


def check_number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> None:
    """Refuse what is not a finite number within limits.

    Raises:
        ConfigError: Names the field and its value.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type]
        limits = "" if math.inf in (-low, high) else f" from {low:g} to {high:g}"
        raise ConfigError(
            f"{name} must be a finite number{limits}, got {value!r}.", field=name, value=value
        )
