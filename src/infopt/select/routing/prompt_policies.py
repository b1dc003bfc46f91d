"""Policies that need no training: a random share, the prompt's length, classes by pattern."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from infopt.errors import ConfigError, check_known_keys
from infopt.select.routing.policy import POLICIES, PairPolicy, check_number
from infopt.select.routing.request import Decision, RouteRequest

_MAX_PATTERN = 500
_SEARCHED_CHARACTERS = 20_000
"""Patterns are searched in the beginning of a prompt only: a bound on their time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPolicy(PairPolicy):
    """Sends a share of all prompts to the strong model, whatever they say.

    The same prompt goes to the same model every time, so that its prefix stays cached there.

    Attributes:
        threshold: 1 minus the share of the strong model.
        seed: Another seed sends others.
    """

    kind = "random"
    threshold: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        super(RandomPolicy, self).__post_init__()
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError(
                f"seed must be a whole number, got {self.seed!r}.", field="seed", value=self.seed
            )

    @classmethod
    def of_share(cls, cheap: str, strong: str, share: float, seed: int = 0) -> Self:
        """Return the policy that sends ``share`` (0 to 1) of the prompts to the strong model."""
        check_number("share", share, 0, 1)
        return cls(cheap=cheap, strong=strong, threshold=1 - share, seed=seed)

    def need(self, request: RouteRequest) -> float:
        """Return a number in (0, 1], uniform over prompts."""
        text = f"{self.seed}:{request.prompt}".encode("utf-8", "replace")
        digest = hashlib.blake2b(text, digest_size=6).digest()
        return 1 - int.from_bytes(digest, "big") / 2**48

    def decide(self, request: RouteRequest) -> Decision:
        """Choose by chance; a share of 0 sends nothing."""
        need = self.need(request)
        model = self.strong if need > self.threshold else self.cheap
        return Decision(model, self.kind, f"random: share {1 - self.threshold:.4g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPolicy(PairPolicy):
    """Sends long prompts to the strong model.

    Attributes:
        threshold: Fewest characters that go there.
    """

    kind = "length"

    def need(self, request: RouteRequest) -> float:
        """Return the number of characters."""
        return float(len(request.prompt))


@dataclass(frozen=True, slots=True)
class PromptClass:
    """A kind of prompt.

    Attributes:
        name: Letters, digits, ``_`` and ``-``.
        pattern: Regular expression that is searched in the prompt, with ``^`` and ``$`` at lines.
        need: How much the class needs the strong model; None where ``model`` is given.
        model: Where it goes in any case; None where ``need`` decides.
    """

    name: str
    pattern: str
    need: float | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: Names the field.
        """
        if not isinstance(self.name, str) or not re.fullmatch(r"[\w-]+", self.name, re.ASCII):
            raise ConfigError(
                f"The name of a class must be letters, digits, _ and -, got {self.name!r}.",
                field="classes.name",
                value=self.name,
            )
        if (self.need is None) == (self.model is None):
            raise ConfigError(
                f"Class {self.name} must have either need or model.", field=f"classes.{self.name}"
            )
        if self.need is not None:
            check_number(f"classes.{self.name}.need", self.need)
        self._check_pattern()

    def _check_pattern(self) -> None:
        try:
            if not isinstance(self.pattern, str) or len(self.pattern) > _MAX_PATTERN:
                raise re.error(f"must be a text of at most {_MAX_PATTERN} characters")
            re.compile(self.pattern, re.MULTILINE)
        except re.error as error:
            raise ConfigError(
                f"Class {self.name} has the pattern {self.pattern!r}: {error}.",
                field=f"classes.{self.name}.pattern",
                value=self.pattern,
            ) from None

    def matches(self, prompt: str) -> bool:
        """Tell whether a prompt belongs to it."""
        return re.search(self.pattern, prompt[:_SEARCHED_CHARACTERS], re.MULTILINE) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPolicy(PairPolicy):
    """Sorts prompts into classes by pattern; the first that matches counts.

    Attributes:
        threshold: Lowest need of a class that goes to the strong model.
        classes: In order.
        other_need: Need of a prompt in no class.
    """

    kind = "classes"
    threshold: float = 0.5
    classes: tuple[PromptClass, ...]
    other_need: float = 0.0

    def __post_init__(self) -> None:
        """Check the values; classes may be mappings, as in a file."""
        super(ClassPolicy, self).__post_init__()
        check_number("other_need", self.other_need)
        if not isinstance(self.classes, list | tuple):
            raise ConfigError(
                f"classes must be a list, got {self.classes!r}.",
                field="classes",
                value=self.classes,
            )
        object.__setattr__(self, "classes", tuple(map(_class_of, self.classes)))
        names = [item.name for item in self.classes]
        for name in names:
            if names.count(name) > 1 or name == "other":
                raise ConfigError(
                    f"There must be one class {name!r}, and none called other.",
                    field="classes",
                    value=name,
                )

    @property
    def models(self) -> tuple[str, ...]:
        """All models that it may name, the cheap one first."""
        named = [item.model for item in self.classes if item.model is not None]
        return tuple(dict.fromkeys((self.cheap, self.strong, *named)))

    def class_of(self, request: RouteRequest) -> PromptClass | None:
        """Return the first class that matches; None for any other prompt."""
        return next((item for item in self.classes if item.matches(request.prompt)), None)

    def need(self, request: RouteRequest) -> float:
        """Return the need of the prompt's class; of a class with a model, 1 for the strong one."""
        found = self.class_of(request)
        if found is None:
            return self.other_need
        return float(found.model == self.strong) if found.need is None else found.need

    def decide(self, request: RouteRequest) -> Decision:
        """Choose by class."""
        found = self.class_of(request)
        label = f"class:{'other' if found is None else found.name}"
        if found is not None and found.model is not None:
            return Decision(found.model, label, label)
        need = self.need(request)
        model = self.strong if need >= self.threshold else self.cheap
        return Decision(model, label, f"{label}: need {need:.4g}, from {self.threshold:.4g} strong")


def _class_of(item: Any) -> PromptClass:
    if isinstance(item, PromptClass):
        return item
    if not isinstance(item, Mapping):
        raise ConfigError(f"A class must be a mapping, got {item!r}.", field="classes", value=item)
    check_known_keys(item, ("name", "pattern", "need", "model"), "a class of prompts")
    for key in ("name", "pattern"):
        if key not in item:
            raise ConfigError(f"A class lacks its {key}: {dict(item)}.", field=f"classes.{key}")
    return PromptClass(**item)


POLICIES.register("random")(RandomPolicy)
POLICIES.register("length")(LengthPolicy)
POLICIES.register("classes")(ClassPolicy)
