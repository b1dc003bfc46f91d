"""From ``kv_eviction={...}`` to a press and a budget."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from infopt.cache.eviction.press import PRESSES, Press, check_count, check_flag, check_share
from infopt.cache.eviction.presses import make_press, option_names
from infopt.errors import ConfigError, check_known_keys

Span = tuple[int, int]

OFF = "none"
"""Method of a request that wants no eviction where the engine's default is one."""

_COMMON = ("budget", "budget_tokens", "protected", "decode", "interval_pages")
_MODULES = (
    "infopt.cache.eviction.presses",
    "infopt.cache.eviction.attention_presses",
    "infopt.cache.eviction.expected",
)
"""Importing them fills the registry."""


@dataclass(frozen=True, slots=True)
class EvictionConfig:
    """A press, and how much it keeps.

    Attributes:
        method: Name of the press.
        press: Scores rows.
        budget: Share of the prompt that is kept; None where a number is given.
        budget_tokens: Rows that are kept; None where a share is given.
        protected: Spans of prompt positions that always stay.
        decode: Whether eviction goes on while tokens are generated.
        interval_pages: Pages of new rows between two evictions while decoding.
    """

    method: str
    press: Press
    budget: float | None
    budget_tokens: int | None
    protected: tuple[Span, ...]
    decode: bool
    interval_pages: int

    def budgets(self, num_prompt: int, num_groups: int) -> list[int]:
        """Return the rows that each group of layers keeps of a prompt.

        A budget is raised to what the press never evicts, and to the protected tokens.
        """
        mean = self.budget_tokens
        if mean is None:
            assert self.budget is not None
            mean = math.floor(self.budget * num_prompt + 1e-9)
        least = max(1, self.press.min_rows, self._num_protected(num_prompt))
        shares = self.press.budgets(max(mean, 1), num_prompt, num_groups)
        return [max(share, least) for share in shares]

    def spans(self, num_prompt: int) -> list[Span]:
        """Return the protected spans within a prompt."""
        clipped = [(start, min(end, num_prompt)) for start, end in self.protected]
        return [(start, end) for start, end in clipped if start < end]

    def _num_protected(self, num_prompt: int) -> int:
        return len({at for span in self.spans(num_prompt) for at in range(*span)})


def read_eviction(options: Mapping[str, Any] | None) -> EvictionConfig | None:
    """Return what options ask for; None, and the method ``none``, ask for nothing.

    Args:
        options: ``method``, ``budget`` or ``budget_tokens``, and the options of the method.

    Raises:
        ConfigError: Unknown method or option, or a value out of range.
    """
    for module in _MODULES:
        importlib.import_module(module)
    if options is None:
        return None
    given = dict(options)
    method = given.pop("method", None)
    if method == OFF and not given:
        return None
    if not isinstance(method, str) or method == OFF:
        raise ConfigError(
            f"kv_eviction needs the name of a method, got {dict(options)!r}.",
            field="kv_eviction.method",
            value=method,
            remedy=f"Valid methods: {', '.join([*PRESSES.names(), OFF])}.",
        )
    check_known_keys(given, [*option_names(method), *_COMMON], f"kv_eviction={method}")
    common = {name: given.pop(name) for name in _COMMON if name in given}
    press = make_press(method, given)
    decode = _decode(method, press, common.get("decode"))
    if press.is_relative and not decode:
        raise ConfigError(
            "kv_eviction: positions='relative' needs decode: true, else rows pile up behind the "
            "prompt.",
            field="kv_eviction.decode",
            value=False,
        )
    return EvictionConfig(
        method=method,
        press=press,
        **_budget(common.get("budget"), common.get("budget_tokens")),
        protected=_spans(common.get("protected", ())),
        decode=decode,
        interval_pages=_interval(common.get("interval_pages", 2)),
    )


def _budget(share: object, tokens: object) -> dict[str, Any]:
    if (share is None) == (tokens is None):
        raise ConfigError(
            "kv_eviction needs exactly one of budget (a share) and budget_tokens.",
            field="kv_eviction.budget",
            value=share,
            remedy='{"method": "streaming", "budget": 0.5}',
        )
    if share is not None:
        check_share("budget", share)
    else:
        check_count("budget_tokens", tokens, 1)
    return {"budget": share, "budget_tokens": tokens}


def _spans(given: object) -> tuple[Span, ...]:
    """Return protected spans; a number protects that many first tokens."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return ((0, given),)
    is_list = isinstance(given, Iterable) and not isinstance(given, str)
    spans = [_span(pair) for pair in given] if is_list else [None]  # type: ignore[union-attr]
    found = [span for span in spans if span is not None]
    if len(found) < len(spans):
        raise ConfigError(
            f"kv_eviction: protected must be a number of first tokens or a list of "
            f"[start, end) spans, got {given!r}.",
            field="kv_eviction.protected",
            value=given,
        )
    return tuple(found)


def _span(given: object) -> Span | None:
    """Return a pair of positions, or None where it is none."""
    if not isinstance(given, list | tuple) or len(given) != 2:
        return None
    start, end = given
    return (start, end) if type(start) is type(end) is int and 0 <= start < end else None


def _decode(method: str, press: Press, given: object) -> bool:
    if given is None:
        return press.decodes
    check_flag("decode", given)
    if given and not press.decodes:
        able = [name for name in PRESSES if PRESSES.get(name).decodes]
        raise ConfigError(
            f"kv_eviction: {method} evicts at the end of the prompt alone.",
            field="kv_eviction.decode",
            value=given,
            remedy=f"These go on while decoding: {', '.join(able)}.",
        )
    return bool(given)


def _interval(given: object) -> int:
    check_count("interval_pages", given, 1)
    assert isinstance(given, int)
    return given
