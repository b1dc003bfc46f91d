"""Typed access to the architecture's part of GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from infopt.errors import CheckpointError, UnsupportedModelError

# What a file may say about its architecture. Anything else could change the result, so it is
# refused by name instead of being skipped.
KNOWN_KEYS = {
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.value_length",
    "attn_logit_softcapping",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "feed_forward_length",
    "final_logit_softcapping",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "vocab_size",
}


class GGUFFields:
    """Reads ``<architecture>.<key>`` metadata and names what is missing or odd.

    Args:
        metadata: Key -> value, as `GGUFReader` gives them.
        architecture: Prefix of the keys.

    Raises:
        UnsupportedModelError: Names a key that is not understood.
    """

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        """Check that all keys are known."""
        self.metadata = metadata
        self.architecture = architecture
        for key in metadata:
            if key.startswith(f"{architecture}.") and self._suffix(key) not in KNOWN_KEYS:
                raise self.unsupported(self._suffix(key))

    def _suffix(self, key: str) -> str:
        return key.removeprefix(f"{self.architecture}.")

    def __contains__(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.metadata

    def get(self, key: str, default: Any = None) -> Any:
        """Return one value; a per-layer array is accepted where all layers agree."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, np.ndarray):
            if len(set(value.tolist())) != 1:
                raise self.unsupported(key)
            return value.tolist()[0]
        return value

    def need(self, key: str) -> Any:
        """Return a value that every file must give."""
        if key not in self:
            raise CheckpointError(
                f"The GGUF metadata lack {self.architecture}.{key}.",
                field=f"{self.architecture}.{key}",
                remedy="Convert the model again with a current converter.",
            )
        return self.get(key)

    def unsupported(self, key: str) -> UnsupportedModelError:
        """Return the error for a setting that the decoder does not implement."""
        name = f"{self.architecture}.{key}"
        value = self.metadata.get(name)
        shown = "per-layer values" if isinstance(value, np.ndarray) else repr(value)
        return UnsupportedModelError(
            f"The GGUF metadata set {name} to {shown}, which is not supported.",
            field=name,
            value=value,
        )
