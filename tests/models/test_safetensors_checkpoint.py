"""Safetensors folders: exact tensors, the index decides, and nothing is guessed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from infopt.errors import CheckpointError, UnsupportedModelError
from infopt.models.checkpoint import open_checkpoint
from infopt.models.safetensors_checkpoint import INDEX_NAME, SafetensorsCheckpoint
from infopt.models.tensor_names import linear_layers

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
NORM = "model.norm.weight"


@pytest.fixture
def folder(tiny_model_dir, tmp_path) -> Path:
    """A private copy of a small Llama folder."""
    return Path(shutil.copytree(tiny_model_dir("llama"), tmp_path / "model"))


def rewrite(folder: Path, change, file: str = "model.safetensors") -> None:
    """Apply ``change`` to the dict of tensors in a file."""
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file, metadata={"format": "pt"})


def edit_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def shard(folder: Path, index: dict[str, str], **shards: dict[str, torch.Tensor]) -> None:
    """Replace the single file by shards ``a``, ``b``, ... and an index."""
    (folder / "model.safetensors").unlink()
    for name, tensors in shards.items():
        save_file(tensors, folder / f"{name}.safetensors", metadata={"format": "pt"})
    content = {"metadata": {}, "weight_map": {n: f"{s}.safetensors" for n, s in index.items()}}
    (folder / INDEX_NAME).write_text(json.dumps(content))


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_equal_those_of_transformers(tiny_model_dir, family):
    import transformers

    folder = tiny_model_dir(family)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    expected = dict(model.named_parameters())
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.format == "safetensors"
        assert set(checkpoint.names()) == set(expected)
        for name, tensor in expected.items():
            folded = family == "gemma3_text" and name.endswith("norm.weight")
            assert torch.equal(checkpoint.get(name), tensor + 1 if folded else tensor), name
        assert checkpoint.config.num_parameters == sum(t.numel() for t in expected.values())


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("asked", [torch.bfloat16, torch.float16, torch.float32])
def test_values_are_converted_and_bits_never_reinterpreted(tiny_model_dir, stored, asked):
    exact = load_file(tiny_model_dir("llama") / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tiny_model_dir("llama", dtype=stored))
    assert checkpoint.stored_dtype(NORM) == stored
    for name in checkpoint.names():
        found = checkpoint.get(name, asked)
        assert found.dtype == asked
        assert torch.equal(found, exact[name].to(stored).to(asked)), name


def test_gemma_norms_are_folded_in_float32(tiny_model_dir):
    """1 + w added in bfloat16 would lose the small bits of w."""
    exact = load_file(tiny_model_dir("gemma3_text") / "model.safetensors")
    checkpoint = open_checkpoint(tiny_model_dir("gemma3_text", dtype=torch.bfloat16))
    found = checkpoint.get(NORM)
    assert torch.equal(found, exact[NORM].bfloat16().float() + 1)


def test_shards_written_by_transformers_are_found(tiny_model_dir):
    folder = tiny_model_dir("llama", max_shard_size="150KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    whole = open_checkpoint(tiny_model_dir("llama"))
    parts = open_checkpoint(folder)
    assert whole.names() == parts.names()
    for name in whole.names():
        assert torch.equal(whole.get(name), parts.get(name))


@pytest.mark.parametrize("right", ["a", "b"])
def test_a_tensor_in_two_shards_comes_from_the_one_the_index_names(folder, right):
    """Pins the fault of a reused shard whose left-over tensors overwrote the right ones."""
    tensors = load_file(folder / "model.safetensors")
    other = {name: tensor + 1 for name, tensor in tensors.items()}
    shards = {"a": tensors, "b": other}
    shard(folder, dict.fromkeys(tensors, "b" if right == "a" else "a") | {NORM: right}, **shards)
    checkpoint = open_checkpoint(folder)
    assert torch.equal(checkpoint.get(NORM), shards[right][NORM])
    assert not torch.equal(checkpoint.get(NORM), shards["b" if right == "a" else "a"][NORM])


def test_an_index_that_names_a_missing_file_is_called_stale(folder):
    """Pins the fault of reporting tensors when the index listed files that are not there."""
    tensors = load_file(folder / "model.safetensors")
    shard(folder, dict.fromkeys(tensors, "a") | {NORM: "c"}, a=tensors, b=tensors)
    with pytest.raises(CheckpointError, match=r"stale.*c\.safetensors") as error:
        open_checkpoint(folder)
    assert error.value.value == "c.safetensors"


def test_an_index_that_puts_a_tensor_into_the_wrong_file_is_called_stale(folder):
    tensors = load_file(folder / "model.safetensors")
    norm = {NORM: tensors.pop(NORM)}
    shard(folder, dict.fromkeys(tensors, "a") | {NORM: "a"}, a=tensors, b=norm)
    with pytest.raises(CheckpointError, match=r"stale.*model\.norm\.weight.*a\.safetensors"):
        open_checkpoint(folder)


def test_an_index_may_not_lead_out_of_the_folder(folder, tmp_path):
    shutil.copy(folder / "model.safetensors", tmp_path / "x.safetensors")
    tensors = load_file(folder / "model.safetensors")
    shard(folder, dict.fromkeys(tensors, "../x"), a=tensors)
    with pytest.raises(CheckpointError, match="stale"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", ["{}", "[]", "{"])
def test_an_index_without_a_map_is_reported(folder, content):
    (folder / INDEX_NAME).write_text(content)
    with pytest.raises(CheckpointError, match="no weight_map"):
        open_checkpoint(folder)


def test_several_files_without_an_index_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"2 safetensors files and no model\.safetensors"):
        open_checkpoint(folder)


def test_a_missing_tensor_is_reported_by_name(folder):
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        open_checkpoint(folder)


def test_an_unknown_tensor_is_refused_by_name(folder):
    rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.sinks": torch.zeros(4)}))
    with pytest.raises(CheckpointError, match=r"self_attn\.sinks"):
        open_checkpoint(folder)


def test_a_bias_that_the_configuration_does_not_mention_is_refused(folder):
    rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}))
    with pytest.raises(CheckpointError, match=r"q_proj\.bias"):
        open_checkpoint(folder)


def test_saved_rotary_buffers_are_left_alone(folder):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(8)}))
    assert name not in open_checkpoint(folder).names()


def test_a_misshapen_tensor_is_reported_with_both_shapes(folder):
    edit_config(folder, intermediate_size=96)
    with pytest.raises(CheckpointError, match=r"\(128, 64\).*\(96, 64\)"):
        open_checkpoint(folder)


def test_a_type_that_is_no_float_is_refused_by_name(folder):
    rewrite(folder, lambda t: t.update({NORM: t[NORM].to(torch.int8)}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*I8"):
        open_checkpoint(folder)


def test_a_tied_head_is_absent_whether_stored_or_not(folder):
    edit_config(folder, tie_word_embeddings=True)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    rewrite(folder, lambda t: t.update({"lm_head.weight": embedding.clone()}))
    assert "lm_head.weight" not in open_checkpoint(folder).names()
    rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert "lm_head.weight" not in open_checkpoint(folder).names()


def test_a_tied_head_that_differs_from_the_embedding_is_refused(folder):
    edit_config(folder, tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight that differs"):
        open_checkpoint(folder)


def test_an_untied_head_must_be_there(folder):
    rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        open_checkpoint(folder)


def test_embedding_rows_above_the_tokenizer_are_not_tokens(tiny_model_dir):
    """Pins the faults of padded embeddings: loading failed, or placeholders were produced."""
    config = open_checkpoint(tiny_model_dir("llama", vocab_size=384)).config
    assert (config.vocab_size, config.num_real_tokens) == (384, 320)


def test_without_a_tokenizer_every_row_is_a_token(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config.num_real_tokens == checkpoint.config.vocab_size == 320
    with pytest.raises(CheckpointError, match="no tokenizer"):
        checkpoint.tokenizer()


def test_gemma_with_a_vision_tower_gives_its_text_decoder(tiny_model_dir, tmp_path):
    source = tiny_model_dir("gemma3_text")
    folder = Path(shutil.copytree(source, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    outer = {"model_type": "gemma3", "text_config": config, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(outer))

    def nest(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors["model.language_model." + name.removeprefix("model.")] = tensors.pop(name)
        tensors["model.vision_tower.vision_model.embeddings.weight"] = torch.zeros(3)
        tensors["model.multi_modal_projector.mm_soft_emb_norm.weight"] = torch.zeros(3)

    rewrite(folder, nest)
    text, nested = open_checkpoint(source), open_checkpoint(folder)
    assert text.names() == nested.names()
    assert all(torch.equal(text.get(name), nested.get(name)) for name in text.names())


def test_an_unsupported_architecture_is_reported_before_anything_else(folder):
    edit_config(folder, model_type="mamba")
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match="'mamba'"):
        open_checkpoint(folder)


def test_an_incomplete_file_is_reported_by_name(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a complete"):
        open_checkpoint(folder)


def test_a_folder_without_config_is_reported(folder):
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        open_checkpoint(folder)


def test_asking_for_an_unknown_tensor_is_an_error(folder):
    with pytest.raises(CheckpointError, match=r"no tensor 'model\.nothing'"):
        open_checkpoint(folder).get("model.nothing")


def test_float_weights_are_not_coded(tiny_model_dir):
    checkpoint = open_checkpoint(tiny_model_dir("llama", tie_word_embeddings=True))
    linears = linear_layers(checkpoint.config)
    assert len(linears) == 21
    assert checkpoint.coded_layers == []
    assert {checkpoint.coded(layer) for layer in linears} == {None}


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_stored_tensors_are_given_bit_by_bit(tiny_model_dir, stored):
    """What is written again must not pass through 1 + w and back."""
    folder = tiny_model_dir("gemma3_text", dtype=stored)
    exact = load_file(folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    for name in checkpoint.names():
        found = checkpoint.stored(name)
        assert found is not None
        assert found.dtype == stored
        assert torch.equal(found, exact[name]), name
    with pytest.raises(CheckpointError, match="no tensor 'x'"):
        checkpoint.stored("x")
