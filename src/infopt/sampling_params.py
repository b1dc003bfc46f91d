"""`SamplingParams`: what a request asks of the sampler, with vLLM's names.

The order in which they act is one written rule (docs/semantics.md): logit_bias, then the
penalties, then the min_tokens mask, then temperature, min_p, top_k, top_p. Each filter works on the
distribution that the one before it left, renormalised. Reported log-probabilities are those of the
raw logits, before all of this.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from infopt.errors import SamplingParamsError, check_known_keys

MAX_LOGPROBS = 64
"""Most alternatives a request may ask for per position."""

_MAX_STOPS = 64

_FLAGS = ("include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens")


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """What the output must look like: exactly one of these.

    Attributes:
        json: A JSON Schema, as data or as JSON text.
        json_object: Any JSON object.
        regex: Matches the output from beginning to end.
        choice: The texts to choose from.
        grammar: A grammar in Lark's syntax, with the rule ``start``.
    """

    json: Mapping[str, Any] | bool | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        """Check that there is one and no more.

        Raises:
            SamplingParamsError: Says how many there are.
        """
        if isinstance(self.choice, list):
            object.__setattr__(self, "choice", tuple(self.choice))
        if len(self.to_dict()) != 1:
            names = ", ".join(f.name for f in dataclasses.fields(self))
            raise SamplingParamsError(
                f"structured_outputs needs exactly one of {names}, got {list(self.to_dict())}.",
                field="structured_outputs",
                value=self.to_dict(),
            )

    def to_dict(self) -> dict[str, Any]:
        """Return what is given, as plain data."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        given = {k: v for k, v in values.items() if v is not None}
        return given if self.json_object else {k: v for k, v in given.items() if k != "json_object"}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens and when to stop.

    Attributes:
        n: Number of completions per prompt; completion ``i`` of a seeded request is itself seeded.
        temperature: 0 is greedy (ties go to the lowest id); up to 100.
        top_p: Keep the smallest set whose probability reaches this; in (0, 1].
        top_k: Keep this many; 0 or -1 keeps all. Of tied tokens the lowest ids stay.
        min_p: Drop tokens below this share of the most likely one's probability; in [0, 1].
        repetition_penalty: Divides positive and multiplies negative logits of tokens seen in
            prompt or output (CTRL, arXiv 1909.05858); 1 is off.
        presence_penalty: Subtracted once from tokens seen in the output; in [-2, 2].
        frequency_penalty: Subtracted per occurrence in the output; in [-2, 2].
        logit_bias: Token id -> value in [-100, 100] added to its logit.
        seed: Makes sampling reproducible whatever shares the batch.
        stop: Strings that end the output; not part of it unless asked.
        stop_token_ids: Token ids that end the output (the id is kept, its text is not shown).
        include_stop_str_in_output: Keep the stop string in the text.
        min_tokens: End-of-sequence and stop tokens are masked before this many.
        max_tokens: Most tokens to make; None is up to ``max_model_len``. 0 only scores the prompt.
        ignore_eos: Go on past end-of-sequence.
        logprobs: Number of alternatives to report per generated token (None: nothing).
        prompt_logprobs: The same for prompt tokens; the first position is always None.
        prompt_logprobs_start: First prompt position that is reported; those before it are None,
            cost no output head, and may come from the prefix cache.
        detokenize: Make text; False works on ids alone (and then ``stop`` must be empty).
        skip_special_tokens: Leave special tokens out of the text.
        structured_outputs: What the output must look like; `LLM` enforces it.
        kv_eviction: Which keys and values are kept, as `EngineConfig.kv_eviction` says it (None: as
            the engine is configured; ``{"method": "none"}``: all of them).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    detokenize: bool = True
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    kv_eviction: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check all values and freeze the containers.

        Raises:
            SamplingParamsError: Names the field, its value and the accepted range.
        """
        self._check_counts()
        self._check_ranges()
        self._freeze_stops()
        self._freeze_logit_bias()
        self._freeze_structured_outputs()
        self._freeze_kv_eviction()

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Build from plain data; unknown keys are errors."""
        check_known_keys(values, [f.name for f in dataclasses.fields(cls)], "SamplingParams")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that :meth:`from_dict` reads back."""
        out = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        form = self.structured_outputs
        return out | {
            "structured_outputs": None if form is None else form.to_dict(),
            "logit_bias": dict(self.logit_bias),
            "stop": list(self.stop),
            "stop_token_ids": list(self.stop_token_ids),
            "kv_eviction": None if self.kv_eviction is None else dict(self.kv_eviction),
        }

    def replace(self, **changes: Any) -> SamplingParams:
        """Return a copy with some values changed."""
        return dataclasses.replace(self, **changes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle through plain data: a mapping proxy does neither."""
        return SamplingParams.from_dict, (self.to_dict(),)

    def _check_counts(self) -> None:
        _int_in("n", self.n, 1, 256)
        _int_in("top_k", self.top_k, -1, None)
        _int_in("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None:
            _int_in("max_tokens", self.max_tokens, 0, None)
            if self.min_tokens > self.max_tokens:
                raise SamplingParamsError(
                    f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}.",
                    field="min_tokens",
                    value=self.min_tokens,
                    remedy="Lower min_tokens or raise max_tokens.",
                )
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _int_in(name, getattr(self, name), 0, MAX_LOGPROBS)
        _int_in("prompt_logprobs_start", self.prompt_logprobs_start, 0, None)
        if self.prompt_logprobs_start and self.prompt_logprobs is None:
            raise SamplingParamsError(
                "prompt_logprobs_start needs prompt_logprobs: nothing is reported without it.",
                field="prompt_logprobs_start",
                value=self.prompt_logprobs_start,
                remedy="Set prompt_logprobs=0 for the given tokens alone.",
            )
        if self.seed is not None:
            _int_in("seed", self.seed, -(2**63), 2**64 - 1)

    def _check_ranges(self) -> None:
        _float_in("temperature", self.temperature, 0.0, 100.0)
        _float_in("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _float_in("min_p", self.min_p, 0.0, 1.0)
        _float_in("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _float_in("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _float_in("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise SamplingParamsError(
                    f"{name} must be true or false, got {getattr(self, name)!r}.",
                    field=name,
                    value=getattr(self, name),
                )

    def _freeze_stops(self) -> None:
        stops = (self.stop,) if isinstance(self.stop, str) else _entries("stop", self.stop)
        if len(stops) > _MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
            raise SamplingParamsError(
                f"stop must be at most {_MAX_STOPS} non-empty strings, got {self.stop!r}.",
                field="stop",
                value=self.stop,
            )
        if stops and not self.detokenize:
            raise SamplingParamsError(
                "stop strings need detokenize=True.",
                field="stop",
                value=self.stop,
                remedy="Use stop_token_ids, or leave detokenize on.",
            )
        ids = _entries("stop_token_ids", self.stop_token_ids)
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise SamplingParamsError(
                f"stop_token_ids must be token ids >= 0, got {self.stop_token_ids!r}.",
                field="stop_token_ids",
                value=self.stop_token_ids,
            )
        object.__setattr__(self, "stop", stops)
        object.__setattr__(self, "stop_token_ids", ids)

    def _freeze_logit_bias(self) -> None:
        given = self.logit_bias or {}
        if not isinstance(given, Mapping):
            raise SamplingParamsError(
                f"logit_bias must map token ids to numbers, got {given!r}.",
                field="logit_bias",
                value=given,
            )
        clean = dict(_bias_entry(key, value) for key, value in given.items())
        object.__setattr__(self, "logit_bias", MappingProxyType(clean))

    def _freeze_structured_outputs(self) -> None:
        form = self.structured_outputs
        if isinstance(form, Mapping):
            known = [f.name for f in dataclasses.fields(StructuredOutputsParams)]
            check_known_keys(form, known, "structured_outputs")
            object.__setattr__(self, "structured_outputs", StructuredOutputsParams(**form))
        elif form is not None and not isinstance(form, StructuredOutputsParams):
            raise SamplingParamsError(
                f"structured_outputs must be a StructuredOutputsParams, got {form!r}.",
                field="structured_outputs",
                value=form,
            )

    def _freeze_kv_eviction(self) -> None:
        given = self.kv_eviction
        if given is None:
            return
        if not isinstance(given, Mapping):
            raise SamplingParamsError(
                f"kv_eviction must be a mapping of options, got {given!r}.",
                field="kv_eviction",
                value=given,
                remedy='Example: {"method": "streaming", "budget_tokens": 512}.',
            )
        object.__setattr__(self, "kv_eviction", MappingProxyType(dict(given)))


def _bias_entry(key: object, value: object) -> tuple[int, float]:
    """Return a checked entry of ``logit_bias``; ids may be text, as JSON has no other keys."""
    if isinstance(key, str) and key.strip().isdecimal():
        key = int(key)
    is_id = isinstance(key, int) and not isinstance(key, bool) and key >= 0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_id or not is_number or not -100.0 <= value <= 100.0:  # type: ignore[operator]
        raise SamplingParamsError(
            f"logit_bias entry {key!r}: {value!r} is not a token id >= 0 with a number from "
            "-100 to 100.",
            field="logit_bias",
            value={key: value},
        )
    return key, float(value)  # type: ignore[return-value, arg-type]


def _entries(name: str, values: object) -> tuple[Any, ...]:
    """Return the entries of a list; None is an empty one."""
    if values is None:
        return ()
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise SamplingParamsError(
            f"{name} must be a list, got {values!r}.", field=name, value=values
        )
    return tuple(values)


def _int_in(name: str, value: object, low: int, high: int | None) -> None:
    ok = isinstance(value, int) and not isinstance(value, bool)
    if not ok or value < low or (high is not None and value > high):  # type: ignore[operator]
        limit = f"from {low} to {high}" if high is not None else f">= {low}"
        raise SamplingParamsError(
            f"{name} must be a whole number {limit}, got {value!r}.", field=name, value=value
        )


def _float_in(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or value > high or value < low or (open_low and value == low):  # type: ignore[operator]
        bracket = "(" if open_low else "["
        raise SamplingParamsError(
            f"{name} must be a number in {bracket}{low:g}, {high:g}], got {value!r}.",
            field=name,
            value=value,
        )
