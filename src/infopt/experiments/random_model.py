"""A tiny random checkpoint with a byte-level tokenizer: the pipeline's own test piece.

It knows nothing, so its quality figures mean nothing, but it goes through the same files, loaders,
engine and notebooks as a real model, in seconds and without a download.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "attention_bias": False,
    "mlp_bias": False,
}
_SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>")
_TEMPLATE = (
    "{% for m in messages %}<|{{ 'assistant' if m['role'] == 'assistant' else 'user' }}|>"
    "{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_random_model(folder: str | Path, seed: int = 0) -> Path:
    """Write the checkpoint: config, weights and tokenizer in Hugging Face's layout.

    Args:
        folder: Where to; made if absent.
        seed: The same seed gives the same bytes.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = write_tokenizer(folder)
    config = _CONFIG | {"vocab_size": vocab_size, "eos_token_id": vocab_size - len(_SPECIAL)}
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    generator = torch.Generator().manual_seed(seed)
    weights = {name: _draw(name, shape, generator) for name, shape in _shapes(config).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_tokenizer(folder: Path) -> int:
    """Write a tokenizer with one token per byte and the special ones; return its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # One name per byte value, in an order that does not depend on the library's hashing.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_SPECIAL[0], chat_template=_TEMPLATE
    )
    wrapped.save_pretrained(str(folder))
    return tokenizer.get_vocab_size()


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for i in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if "norm" in name:
        return torch.ones(shape)
    # Large enough that greedy text wanders instead of repeating one token.
    return torch.randn(shape, generator=generator) * (3.0 / shape[-1]) ** 0.5
