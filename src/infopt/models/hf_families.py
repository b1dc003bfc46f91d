"""What Hugging Face's ``model_type`` says that a ``config.json`` leaves unsaid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from infopt.models import hf_moe
from infopt.models.config import MoeConfig


@dataclass(frozen=True, slots=True)
class HFFamily:
    """How a ``model_type`` differs from Llama.

    Attributes:
        qkv_bias: Whether q, k, v have a bias; None: ``attention_bias`` says so.
        output_bias: Whether the attention output has one; None: ``attention_bias`` says so.
        layer_types: Windows are given per layer (otherwise one window holds for all layers).
        values: Further fields of `ModelConfig`.
        one_window: ``sliding_window`` holds for all layers.
        moe: Reads the mixture-of-experts values.
    """

    qkv_bias: bool | None
    output_bias: bool | None
    layer_types: bool
    values: Mapping[str, Any]
    one_window: bool = False
    moe: Callable[[Any], MoeConfig | None] | None = None


FAMILIES: dict[str, HFFamily] = {
    "llama": HFFamily(None, None, False, {}),
    "mistral": HFFamily(False, False, False, {}, one_window=True),
    "qwen2": HFFamily(True, False, True, {}),
    "qwen3": HFFamily(None, None, True, {"qk_norm": True}),
    "gemma3_text": HFFamily(None, None, True, {"qk_norm": True, "sandwich_norms": True}),
    "mixtral": HFFamily(False, False, False, {}, one_window=True, moe=hf_moe.mixtral),
    "qwen2_moe": HFFamily(None, False, True, {}, moe=hf_moe.qwen2_moe),
    "qwen3_moe": HFFamily(
        None, None, False, {"qk_norm": True}, one_window=True, moe=hf_moe.qwen3_moe
    ),
    "olmoe": HFFamily(None, None, False, {"qk_norm": True, "qk_norm_rows": True}, moe=hf_moe.olmoe),
}
