"""Fixtures for the model tests: small GGUF files written from small safetensors folders."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter, quants
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file

from infopt.models import registry

GGUF_ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str, architecture: str) -> str:
    """Translate as a converter does (written independently of the loader's own tables)."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, index, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    gemma = architecture == "gemma3"
    names = _LAYER_NAMES | {
        "post_attention_layernorm": "post_attention_norm" if gemma else "ffn_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    return f"blk.{index}.{names[part]}.{kind}"


def _interleave(values: np.ndarray, head_dim: int) -> np.ndarray:
    """Store the halves of each head as pairs: rows (0, d/2, 1, d/2 + 1, ...)."""
    order = []
    for start in range(0, len(values), head_dim):
        for pair in range(head_dim // 2):
            order += [start + pair, start + head_dim // 2 + pair]
    return values[order]


def _stored_values(name: str, values: np.ndarray, architecture: str, head_dim: int) -> np.ndarray:
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        return _interleave(values, head_dim)
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return values + 1
    return values


def _architecture_metadata(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    ropes = config["rope_parameters"]
    values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": ropes.get("full_attention", ropes)["rope_theta"],
    }
    if "head_dim" in config:
        values["attention.key_length"] = values["attention.value_length"] = config["head_dim"]
    if architecture == "gemma3":
        values["attention.sliding_window"] = config["sliding_window"]
        values["attention.sliding_window_pattern"] = 3
    return {f"{architecture}.{key}": value for key, value in values.items()}


def tokenizer_metadata(folder: Path) -> dict[str, Any]:
    """Describe a folder's byte-level tokenizer as GGUF metadata."""
    data = json.loads((folder / "tokenizer.json").read_text())
    vocab = sorted(data["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["id"] for token in data["added_tokens"]}
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = folder / "chat_template.jinja"
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [token for token, _ in vocab],
        "tokenizer.ggml.token_type": [3 if index in special else 1 for _, index in vocab],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in data["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": dict(vocab)[config["bos_token"]],
        "tokenizer.ggml.eos_token_id": dict(vocab)[config["eos_token"]],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template.read_text(),
    }


def _add_metadata(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _add_tensor(writer: GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    if kind in ("F32", "F16"):
        writer.add_tensor(name, values.astype(np.float32 if kind == "F32" else np.float16))
        return
    quant = GGMLQuantizationType[kind]
    writer.add_tensor(name, quants.quantize(values.astype(np.float32), quant), raw_dtype=quant)


@pytest.fixture(scope="session")
def make_gguf(
    tiny_model_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Factory of small GGUF files with the weights of ``tiny_model_dir`` folders.

    ``linear_type`` is the block type of the projections. ``metadata`` overrides keys (None leaves
    one out), ``tensors`` adds or replaces tensors (by GGUF name), ``without`` leaves some out.
    """

    def make(
        architecture: str = "llama",
        *,
        linear_type: str = "F32",
        metadata: Mapping[str, Any] | None = None,
        tensors: Mapping[str, np.ndarray] | None = None,
        without: tuple[str, ...] = (),
        folder: Path | None = None,
    ) -> Path:
        folder = folder or tiny_model_dir(GGUF_ARCHITECTURES[architecture])
        config = json.loads((folder / "config.json").read_text())
        path = tmp_path_factory.mktemp("gguf") / f"tiny-{architecture}.gguf"
        writer = GGUFWriter(path, architecture)
        values = _architecture_metadata(config, architecture) | tokenizer_metadata(folder)
        for key, value in (values | dict(metadata or {})).items():
            if value is not None:
                _add_metadata(writer, key, value)
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        extra = dict(tensors or {})
        for name, tensor in load_file(folder / "model.safetensors").items():
            stored = _gguf_name(name, architecture)
            if stored in without or stored in extra:
                continue
            array = _stored_values(name, tensor.float().numpy(), architecture, head_dim)
            _add_tensor(writer, stored, array, linear_type if "proj" in name else "F32")
        for name, array in extra.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


@pytest.fixture(scope="session")
def random_texts() -> list[str]:
    """200 strings over all planes, with runs of spaces, digits, line ends and special tokens."""
    draw = random.Random(7)
    planes = [
        chr(code)
        for code in [*range(1, 0xD800), *range(0xE000, 0x110000)]
        if unicodedata.category(chr(code)) not in ("Cn", "Co")
    ]
    kinds = (
        planes,
        "abcdefghij XYZ.,!?'",
        [" ", "  ", "\n", "\t", "\r\n", "0", "12", "'s", "ä", "日本", "🫠", "!!"],
        ["<|im_start|>", "<s>", "<|", "|>", "word", " word"],
    )
    return [
        "".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randint(0, 30)))
        for _ in range(200)
    ]


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that a test registers are gone after it."""
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
