"""Models with random weights in the shapes of real ones, made on the device; nothing is fetched.

The peer is a transformers model; the engine reads its weights from the peer, so that both compute
with the same numbers.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch

from infopt.engine import loader, weights
from infopt.errors import ConfigError
from infopt.llm import LLM
from infopt.models.checkpoint import Checkpoint
from infopt.models.hf_config import hf_config

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": False,
    },
    "tiny": {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "vocab_size": 300,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "tie_word_embeddings": False,
    },
}
"""Published configurations; Llama's length scaling of the rotary embedding is left out, since it
changes no shape."""


class PeerCheckpoint(Checkpoint):
    """The weights of a transformers model, read from its memory.

    Args:
        name: Shown where a path would be.
        peer: The model.
    """

    format = "safetensors"

    def __init__(self, name: str, peer: Any) -> None:
        """Translate the configuration."""
        self.path = Path(name)
        self.config = hf_config(peer.config.to_dict())
        self._weights: dict[str, torch.Tensor] = peer.state_dict()

    @property
    def identity(self) -> str:
        """Name of the shape: there is no content to hash."""
        return f"random:{self.path}"

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self._weights)

    def get(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a tensor in another type, or as it is."""
        return self._weights[name].detach().to(dtype)

    def tokenizer(self) -> NoReturn:
        """Refuse: random models work on ids.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("a random model has no tokenizer.", field="tokenizer")

    def close(self) -> None:
        """Do nothing: the peer keeps its weights."""


def make_peer(shape: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a transformers model with random weights on the device."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    values: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    values |= SHAPES[shape]
    make_config: Any = CONFIG_MAPPING[values.pop("model_type")]
    config = make_config(**values)
    torch.manual_seed(0)
    with torch.device(device):
        peer = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return peer.to(device).eval()


def engine_like(shape: str, peer: Any, **options: Any) -> LLM:
    """Return an engine with the weights of a peer.

    Args:
        shape: Name for records.
        peer: From :func:`make_peer`.
        options: Of :class:`~infopt.config.EngineConfig`.
    """
    found = types.SimpleNamespace(path=shape)
    with (
        mock.patch.object(loader, "resolve_model", lambda _: found),
        mock.patch.object(loader, "find_route", lambda _: None),
        mock.patch.object(weights, "resolve_model", lambda _: found),
        mock.patch.object(weights, "open_checkpoint", lambda _: PeerCheckpoint(shape, peer)),
    ):
        return LLM(shape, skip_tokenizer_init=True, **options)
