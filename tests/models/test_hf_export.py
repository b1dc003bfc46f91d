"""Folders made of GGUF files and of folders: transformers builds the same model from them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from infopt import LLM
from infopt.errors import UnsupportedModelError
from infopt.models.checkpoint import Checkpoint, open_checkpoint
from infopt.models.config import RopeConfig
from infopt.models.hf_config import hf_config
from infopt.models.hf_export import config_values, export_config, export_generation_config
from infopt.models.rope import rope_frequencies
from infopt.models.tokenizer_export import write_tokenizer

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def export(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write a folder of float weights from what is exported."""
    folder.mkdir()
    tied = checkpoint.config.tie_word_embeddings
    config = export_config(checkpoint, torch.float32, tie_word_embeddings=tied)
    generation = export_generation_config(checkpoint)
    for name, values in (("config", config), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(values))
    write_tokenizer(checkpoint, folder)
    gemma = checkpoint.config.family == "gemma3_text"
    tensors = {
        name: checkpoint.get(name) - float(gemma and name.endswith("norm.weight"))
        for name in checkpoint.names()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_gguf_file_becomes_a_folder_that_says_the_same(make_gguf, tmp_path, architecture):
    from transformers import AutoModelForCausalLM

    source = open_checkpoint(make_gguf(architecture))
    folder = export(source, tmp_path / "out")
    assert open_checkpoint(folder).config == source.config
    ids = torch.randint(4, 300, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="eager")
    assert model.dtype == torch.float32
    with torch.inference_mode():
        theirs = model.eval()(torch.tensor([ids])).logits[0]
    ours = LLM(str(source.path), dtype="float32", max_model_len=64).logits(ids)
    error = (ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)
    assert error.max() <= 1e-4


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_tokenizer_of_a_gguf_file_comes_along(make_gguf, tmp_path, random_texts, architecture):
    from transformers import AutoTokenizer

    # transformers cuts the text of every model of this family in the family's own way.
    metadata = {"tokenizer.ggml.pre": "qwen2"} if architecture == "qwen2" else {}
    source = open_checkpoint(make_gguf(architecture, metadata=metadata))
    folder = export(source, tmp_path / "out")
    ours = source.tokenizer()
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in random_texts:
        ids = ours.encode(text)
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids) == ours.decode(ids, skip_special_tokens=False)
    assert theirs.chat_template == ours.chat_template
    assert (theirs.bos_token_id, theirs.eos_token_id) == (ours.bos_token_id, ours.eos_token_id)


def test_end_tokens_of_a_gguf_file_are_kept(make_gguf, tmp_path):
    metadata = {"tokenizer.ggml.eot_token_id": 3}
    source = open_checkpoint(make_gguf("llama", metadata=metadata))
    assert source.config.eos_token_ids == (1, 3)
    folder = export(source, tmp_path / "out")
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 0, "eos_token_id": [1, 3]}
    assert open_checkpoint(folder).config.eos_token_ids == (1, 3)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_padded_vocabularies_are_kept(make_gguf, tiny_model_dir, tmp_path, architecture):
    """Embedding rows beyond the tokenizer's entries stay padding, which is never sampled."""
    family = tiny_model_dir(architecture, vocab_size=384)
    padding = [f"[PAD{i}]" for i in range(320, 384)]
    whole = open_checkpoint(make_gguf(architecture, folder=family))
    metadata = whole.tokenizer().hf.get_vocab()
    tokens = sorted(metadata, key=metadata.__getitem__)[:320] + padding
    types = [3 if i < 4 else 1 for i in range(320)] + [5] * 64
    source = open_checkpoint(
        make_gguf(
            architecture,
            folder=family,
            metadata={"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types},
        )
    )
    assert (source.config.vocab_size, source.config.num_real_tokens) == (384, 320)
    found = open_checkpoint(export(source, tmp_path / "out")).config
    assert (found.vocab_size, found.num_real_tokens) == (384, 320)


def llama3_factors(factor: float, head_dim: int = 16, theta: float = 10000.0) -> np.ndarray:
    plain, _ = rope_frequencies(RopeConfig(theta), head_dim)
    ruled, _ = rope_frequencies(RopeConfig(theta, LLAMA3 | {"factor": factor}), head_dim)
    return (plain / ruled).numpy()


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_divisors_of_llama_3_become_its_rule(make_gguf, factor):
    """A GGUF file holds what the rule gives, and config.json can hold the rule only."""
    path = make_gguf("llama", tensors={"rope_freqs.weight": llama3_factors(factor)})
    source = open_checkpoint(path)
    assert source.config.rope.factors is not None
    raw = config_values(source.config)
    assert raw["rope_parameters"] == {"rope_theta": 10000.0} | LLAMA3 | {"factor": factor}
    found = hf_config(raw)
    ours, _ = rope_frequencies(source.config.rope, 16)
    assert torch.allclose(rope_frequencies(found.rope, 16)[0], ours, rtol=1e-5)


def test_other_divisors_are_refused(make_gguf):
    factors = np.linspace(1, 3, 8).astype(np.float32)
    source = open_checkpoint(make_gguf("llama", tensors={"rope_freqs.weight": factors}))
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight"):
        config_values(source.config)


@pytest.mark.parametrize(
    "change", [{"qk_norm": True}, {"output_bias": True}, {"attention_scale": 0.3}]
)
def test_what_config_json_cannot_say_is_refused_by_name(tiny_model_dir, change):
    config = open_checkpoint(tiny_model_dir("llama")).config
    with pytest.raises(UnsupportedModelError, match=next(iter(change))):
        config_values(dataclasses.replace(config, **change))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"])
def test_a_folders_own_configuration_is_kept(tiny_model_dir, tmp_path, family):
    folder = Path(shutil.copytree(tiny_model_dir(family), tmp_path / "model"))
    raw: dict[str, Any] = json.loads((folder / "config.json").read_text())
    raw["torch_dtype"] = raw.pop("dtype", "float32")
    raw["initializer_range"] = 0.125
    (folder / "config.json").write_text(json.dumps(raw))
    config = export_config(open_checkpoint(folder), torch.bfloat16, tie_word_embeddings=False)
    assert config["initializer_range"] == 0.125
    assert config["dtype"] == "bfloat16"
    assert "torch_dtype" not in config
    assert config["architectures"] == raw["architectures"]
    assert hf_config(config).layer_kinds == hf_config(raw).layer_kinds


def test_gemma_with_a_vision_tower_becomes_its_text_decoder(tiny_model_dir, tmp_path):
    folder = Path(shutil.copytree(tiny_model_dir("gemma3_text"), tmp_path / "model"))
    text = json.loads((folder / "config.json").read_text())
    outer = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    outer |= {"architectures": ["Gemma3ForConditionalGeneration"]}
    (folder / "config.json").write_text(json.dumps(outer))
    source = open_checkpoint(folder)
    config = export_config(source, torch.float32, tie_word_embeddings=True)
    assert (config["model_type"], config["architectures"]) == ("gemma3_text", ["Gemma3ForCausalLM"])
    assert "vision_config" not in config
    assert hf_config(config, num_real_tokens=320) == source.config


def test_a_folder_without_a_tokenizer_stays_without(tiny_model_dir, tmp_path):
    folder = Path(shutil.copytree(tiny_model_dir("llama"), tmp_path / "model"))
    for file in folder.glob("token*"):
        file.unlink()
    (tmp_path / "out").mkdir()
    write_tokenizer(open_checkpoint(folder), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
