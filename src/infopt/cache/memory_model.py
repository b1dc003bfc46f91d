"""How much memory keys and values take, and how many sequences of which length fit: arithmetic.

Bytes that one token leaves behind, by family (2 bytes a value in bfloat16 and float16):

    dense, grouped-query     2 * layers * kv_heads * head_dim * bytes
    latent (MLA)             layers * (latent + rope) * bytes
    sliding window           window layers keep at most ``window`` tokens
    quantized pages          codes of ``bits``, a scale and a minimum per key channel and group of
                             tokens, and per token and head for values; the newest rows stay whole
    eviction                 of a prompt's rows only a share, or a number, is kept

`infopt.cache.page_rules` counts the pages that rows take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infopt.errors import ConfigError, UnsupportedModelError, nearest
from infopt.models.config import ModelConfig

PARAMETER_BYTES = 2
"""A scale or a minimum of quantized pages."""

_FORMS = {
    "int8": (8, True),
    "int4": (4, True),
    "int2": (2, True),
    "fp8_e4m3": (8, False),
    "fp8_e5m2": (8, False),
}
"""Bits and scales by ``kv_cache_dtype``."""

_REQUIRED = ("num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True, slots=True)
class QuantizedForm:
    """How old rows are kept.

    Attributes:
        bits: Per code.
        has_scales: Whether codes have scales and minima (float8 numbers have none).
        group_size: Rows of a quantized page, which share the scales of their keys.
        residual: Newest rows that stay whole.
    """

    bits: int
    has_scales: bool = True
    group_size: int = 64
    residual: int = 128

    @classmethod
    def named(cls, dtype: str, **sizes: int) -> QuantizedForm | None:
        """Return the form that ``kv_cache_dtype`` names; None for ``auto``.

        Raises:
            ConfigError: There is no such form.
        """
        if dtype == "auto":
            return None
        if dtype not in _FORMS:
            raise ConfigError(
                f"kv_cache_dtype={dtype!r} is not a choice.{nearest(dtype, _FORMS)}",
                field="kv_cache_dtype",
                value=dtype,
                remedy=f"Choose one of: auto, {', '.join(_FORMS)}.",
            )
        bits, has_scales = _FORMS[dtype]
        return cls(bits, has_scales, **sizes)


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token leaves in the cache of a model.

    Attributes:
        full_layers: Layers that keep every token.
        window_layers: Layers that keep the last ``window`` tokens.
        window: Their window (0 without such layers).
        num_heads: Heads that keep something of their own (1: a latent that all heads share).
        head_width: Values per head and token: key and value together.
    """

    full_layers: int
    window_layers: int
    window: int
    num_heads: int
    head_width: int

    @classmethod
    def of_model(cls, config: ModelConfig) -> KVShape:
        """Return the shape of a model that the native decoder runs."""
        full = config.layer_kinds.count("full")
        window = config.sliding_window or 0
        return cls(full, config.num_layers - full, window, config.num_kv_heads, 2 * config.head_dim)

    @classmethod
    def of_hf(cls, raw: Mapping[str, Any]) -> KVShape:
        """Return the shape that a Hugging Face ``config.json`` describes, of any decoder.

        Args:
            raw: The JSON object; of a multimodal model its ``text_config`` counts.

        Raises:
            UnsupportedModelError: A number is missing that the shape follows from.
        """
        raw = raw.get("text_config") or raw
        missing = [key for key in _REQUIRED if not raw.get(key)]
        if missing:
            raise UnsupportedModelError(
                f"config.json has no {missing[0]!r}, so its KV cache cannot be sized.",
                field=missing[0],
                remedy="Give the config.json of a decoder-only transformer.",
            )
        layers, heads = (int(raw[key]) for key in _REQUIRED)
        windows = _window_layers(raw, layers)
        kept = (layers - windows, windows, int(raw["sliding_window"]) if windows else 0)
        if raw.get("kv_lora_rank"):
            return cls(*kept, 1, int(raw["kv_lora_rank"]) + int(raw["qk_rope_head_dim"]))
        width = raw.get("head_dim") or int(raw["hidden_size"]) // heads
        return cls(*kept, int(raw.get("num_key_value_heads") or heads), 2 * int(width))

    @property
    def num_layers(self) -> int:
        """All layers."""
        return self.full_layers + self.window_layers

    @property
    def layer_values(self) -> int:
        """Values that one token leaves in one layer."""
        return self.num_heads * self.head_width

    def bytes_per_token(self, bytes_per_value: float = 2) -> float:
        """Return what one more token adds as long as no window is full."""
        return self.num_layers * self.layer_values * bytes_per_value

    def bytes_at(self, num_tokens: int, bytes_per_value: float = 2) -> float:
        """Return what a sequence of so many tokens holds, window layers only their window."""
        kept = min(num_tokens, self.window) if self.window_layers else 0
        rows = self.full_layers * num_tokens + self.window_layers * kept
        return rows * self.layer_values * bytes_per_value

    def quantized_bytes_per_value(self, form: QuantizedForm) -> float:
        """Return bytes per value of a quantized row, scales and minima included.

        Keys: a scale and a minimum per channel for ``group_size`` tokens; values: both per token
        and head, for ``head_width / 2`` channels.
        """
        if not form.has_scales:
            return form.bits / 8
        keys, values = 1 / form.group_size, 2 / self.head_width
        return form.bits / 8 + 2 * PARAMETER_BYTES * (keys + values) / 2


def kv_share(num_tokens: int, num_seqs: int, token_bytes: float, weight_bytes: float) -> float:
    """Return the share of KV in the bytes of a decode step: n * kv * B / (W + n * kv * B).

    Args:
        num_tokens: Context of each sequence.
        num_seqs: Sequences of the step.
        token_bytes: KV bytes per token.
        weight_bytes: Bytes of weights that a step reads.
    """
    held = num_tokens * token_bytes * num_seqs
    return held / (weight_bytes + held)


def dominance_length(num_seqs: int, token_bytes: float, weight_bytes: float) -> float:
    """Return the context from which KV is more than half of a decode step's bytes, in tokens."""
    return weight_bytes / (num_seqs * token_bytes)


def rows_kept(num_tokens: int, eviction: Mapping[str, Any] | None) -> int:
    """Return the rows of a prompt that eviction leaves.

    Args:
        num_tokens: Length of the prompt.
        eviction: ``{"budget": share}`` or ``{"budget_tokens": number}`` (other keys say how rows
            are chosen and change nothing here); None keeps all.

    Raises:
        ConfigError: Neither budget is given, or the share is not in (0, 1].
    """
    if eviction is None:
        return num_tokens
    if "budget_tokens" in eviction:
        return min(int(eviction["budget_tokens"]), num_tokens)
    budget = eviction.get("budget")
    if not isinstance(budget, int | float) or not 0 < budget <= 1:
        raise ConfigError(
            f"kv_eviction: budget must be a share in (0, 1], got {budget!r}.",
            field="kv_eviction.budget",
            value=budget,
            remedy="Or give budget_tokens.",
        )
    return max(math.floor(num_tokens * budget + 1e-9), 1)  # as the engine rounds


def _window_layers(raw: Mapping[str, Any], num_layers: int) -> int:
    """Return how many layers have a window."""
    if not raw.get("sliding_window") or raw.get("use_sliding_window") is False:
        return 0
    if kinds := raw.get("layer_types"):
        return sum(kind == "sliding_attention" for kind in kinds)
    if pattern := raw.get("sliding_window_pattern"):  # every so many layers one is full
        return num_layers - num_layers // int(pattern)
    return num_layers
