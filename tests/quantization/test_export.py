"""Folders with coded weights: layer by layer, resumable, and complete or not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from infopt.errors import ConfigError, WeightFormatError
from infopt.models.checkpoint import Checkpoint, open_checkpoint
from infopt.models.tensor_names import linear_layers
from infopt.quantization.coded import ActivationFormat, CodedWeight, WeightFormat
from infopt.quantization.export import CheckpointWriter, folder_dtype

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
INT4 = WeightFormat(4, 32)
INT8 = WeightFormat(8)


def mixed(layer: str) -> WeightFormat | None:
    """Four formats, layers of one input alike; one layer and the head are dense."""
    if layer == "lm_head" or layer.endswith("1.mlp.down_proj"):
        return None
    if ".mlp." in layer:
        return WeightFormat(3, 64, symmetric=False)
    return INT4 if layer.endswith("o_proj") else WeightFormat(2, 32)


def blocks_only(layer: str) -> WeightFormat | None:
    return None if layer == "lm_head" else INT4


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_round_trips(tiny_model_dir, write_coded, tmp_path, family):
    """Read, written and read again: the same files, byte by byte."""
    source = open_checkpoint(tiny_model_dir(family))
    first = write_coded(tmp_path / "first", source, mixed)
    found = open_checkpoint(first)
    assert found.names() == source.names()
    assert found.config == source.config
    writer = CheckpointWriter(tmp_path / "second", found, scheme="test")
    for index in [*range(found.config.num_layers), None]:
        at = "lm_head" if index is None else f"model.layers.{index}."
        layers = [name for name in linear_layers(found.config) if name.startswith(at)]
        codes = {layer: found.coded(layer) for layer in layers}
        writer.add_layer(index, {k: v for k, v in codes.items() if isinstance(v, CodedWeight)})
    second = writer.finish()
    files = sorted(f.name for f in first.iterdir())
    assert files == sorted(f.name for f in second.iterdir())
    for name in files:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_dense_tensors_are_stored_bit_by_bit(tiny_model_dir, write_coded, tmp_path):
    """Norms of this family are given as 1 + w and stored as w; bfloat16 stays bfloat16."""
    folder = tiny_model_dir("gemma3_text", dtype=torch.bfloat16)
    source = load_file(folder / "model.safetensors")
    found = stored_tensors(write_coded(tmp_path / "out", open_checkpoint(folder), blocks_only))
    dense = [name for name in source if name in found]
    assert len(dense) == 2 + 6 * 3
    for name in dense:
        assert found[name].dtype == torch.bfloat16
        assert torch.equal(found[name], source[name]), name
    scales = [tensor for name, tensor in found.items() if name.endswith("weight_scale")]
    assert len(scales) == 21
    assert {scale.dtype for scale in scales} == {torch.bfloat16}


def test_another_type_can_be_asked_for(tiny_model_dir, write_coded, tmp_path):
    source = open_checkpoint(tiny_model_dir("llama"))
    assert folder_dtype(source) == torch.float32
    folder = write_coded(tmp_path / "out", source, blocks_only, dtype=torch.bfloat16)
    assert config_of(folder)["dtype"] == "bfloat16"
    found = open_checkpoint(folder)
    for name in found.names():
        assert found.stored_dtype(name) == torch.bfloat16
    name = "model.norm.weight"
    assert torch.equal(found.get(name), source.get(name).bfloat16().float())


def test_tensors_that_are_handed_over_replace_the_checkpoints(
    tiny_model_dir, code_weight, tmp_path
):
    """Scales folded into a norm are given as the multiplier itself, whatever the family stores."""
    source = open_checkpoint(tiny_model_dir("gemma3_text"))
    norm = "model.layers.0.input_layernorm.weight"
    folded = source.get(norm) / 2
    writer = CheckpointWriter(tmp_path / "out", source, scheme="test")
    for index in (0, 1, 2):
        layer = f"model.layers.{index}.self_attn.o_proj"
        codes = {layer: code_weight(source.get(f"{layer}.weight"), INT4)}
        writer.add_layer(index, codes, {norm: folded} if index == 0 else {})
    writer.add_layer(None, {})
    found = open_checkpoint(writer.finish())
    assert torch.allclose(found.get(norm), folded, rtol=0, atol=1e-7)
    other = norm.replace(".0.", ".1.")
    assert torch.equal(found.get(other), source.get(other))


def test_a_tied_head_is_coded_beside_a_dense_embedding(tiny_model_dir, write_coded, tmp_path):
    source = open_checkpoint(tiny_model_dir("llama", tie_word_embeddings=True))
    folder = write_coded(tmp_path / "out", source, lambda _: INT8)
    config = config_of(folder)
    assert config["tie_word_embeddings"] is False
    found = open_checkpoint(folder)
    embedding = source.get("model.embed_tokens.weight")
    assert torch.equal(found.get("model.embed_tokens.weight"), embedding)
    head = found.get("lm_head.weight")
    step = embedding.abs().amax(-1, keepdim=True) / 127.5
    assert not torch.equal(head, embedding)
    assert ((head - embedding).abs() <= step * 0.51).all()
    groups = config["quantization_config"]["config_groups"]
    assert [group["targets"] for group in groups.values()] == [["lm_head", "Linear"]]


def test_a_tied_head_that_is_not_coded_stays_tied(tiny_model_dir, write_coded, tmp_path):
    source = open_checkpoint(tiny_model_dir("llama", tie_word_embeddings=True))
    folder = write_coded(tmp_path / "out", source, blocks_only)
    assert config_of(folder)["tie_word_embeddings"] is True
    assert "lm_head.weight" not in stored_tensors(folder)
    assert config_of(folder)["quantization_config"]["ignore"] == ["lm_head"]


def test_groups_name_layers_where_formats_differ(tiny_model_dir, write_coded, tmp_path):
    source = open_checkpoint(tiny_model_dir("llama"))
    folder = write_coded(tmp_path / "out", source, mixed)
    settings = config_of(folder)["quantization_config"]
    targets = [set(group["targets"]) for group in settings["config_groups"].values()]
    assert len(targets) == 3
    assert sorted(set.union(*targets) | set(settings["ignore"])) == sorted(
        linear_layers(source.config)
    )
    assert settings["ignore"] == ["lm_head", "model.layers.1.mlp.down_proj"]
    assert settings["format"] == "pack-quantized"


def test_plain_and_packed_layers_are_called_mixed(tiny_model_dir, code_weight, tmp_path):
    source = open_checkpoint(tiny_model_dir("llama"))
    writer = CheckpointWriter(tmp_path / "out", source, scheme="test")
    inputs = {0: ActivationFormat("dynamic"), 1: ActivationFormat("static", scale=0.25)}
    for index in (0, 1, 2):
        layer = f"model.layers.{index}.mlp.down_proj"
        weight = source.get(f"{layer}.weight")
        writer.add_layer(
            index, {layer: code_weight(weight, INT8, inputs.get(index, ActivationFormat()))}
        )
    writer.add_layer(None, {})
    folder = writer.finish()
    assert config_of(folder)["quantization_config"]["format"] == "mixed-precision"
    found = open_checkpoint(folder)
    for index in (0, 1, 2):
        coded = found.coded(f"model.layers.{index}.mlp.down_proj")
        assert isinstance(coded, CodedWeight)
        assert coded.activation == inputs.get(index, ActivationFormat())


def add(writer: CheckpointWriter, source: Checkpoint, code_weight, index: int) -> None:
    layer = f"model.layers.{index}.mlp.down_proj"
    writer.add_layer(index, {layer: code_weight(source.get(f"{layer}.weight"), INT4)})


def test_an_interrupted_run_goes_on(tiny_model_dir, code_weight, tmp_path):
    source = open_checkpoint(tiny_model_dir("llama"))
    out = tmp_path / "out"
    first = CheckpointWriter(out, source, scheme={"name": "x"})
    add(first, source, code_weight, 0)
    assert first.has_layer(0)
    assert not first.has_layer(1)
    assert not out.exists()
    second = CheckpointWriter(out, source, scheme={"name": "x"})
    assert second.has_layer(0)
    with pytest.raises(ConfigError, match=r"layer 1 of .* is not written yet"):
        second.finish()
    for index in (1, 2):
        add(second, source, code_weight, index)
    with pytest.raises(ConfigError, match="embedding, norm and head"):
        second.finish()
    second.add_layer(None, {})
    assert second.finish() == out
    assert [f.name for f in tmp_path.iterdir()] == ["out"]
    assert not [f for f in out.iterdir() if f.suffix == ".tmp" or f.name == "job.json"]
    assert open_checkpoint(out).coded("model.layers.0.mlp.down_proj") is not None


@pytest.mark.parametrize("change", ["scheme", "dtype", "source"])
def test_layers_of_another_run_are_made_again(
    tiny_model_dir, code_weight, tmp_path, caplog, change
):
    source = open_checkpoint(tiny_model_dir("llama"))
    writer = CheckpointWriter(tmp_path / "out", source, scheme="a")
    add(writer, source, code_weight, 0)
    other = open_checkpoint(tiny_model_dir("llama", seed=1)) if change == "source" else source
    again = CheckpointWriter(
        tmp_path / "out",
        other,
        scheme="b" if change == "scheme" else "a",
        dtype=torch.float16 if change == "dtype" else None,
    )
    assert not again.has_layer(0)
    assert "layers of another run" in caplog.text


def test_a_layer_that_was_cut_off_does_not_count(
    tiny_model_dir, code_weight, tmp_path, monkeypatch
):
    source = open_checkpoint(tiny_model_dir("llama"))
    writer = CheckpointWriter(tmp_path / "out", source, scheme="a")

    def cut_off(tensors, path, metadata) -> None:
        path.write_bytes(b"half of a file")
        raise KeyboardInterrupt

    monkeypatch.setattr("infopt.quantization.export.save_file", cut_off)
    with pytest.raises(KeyboardInterrupt):
        add(writer, source, code_weight, 0)
    assert not CheckpointWriter(tmp_path / "out", source, scheme="a").has_layer(0)


def test_a_folder_that_holds_something_is_left_alone(tiny_model_dir, tmp_path):
    source = open_checkpoint(tiny_model_dir("llama"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        CheckpointWriter(tmp_path / "full", source, scheme="a")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        CheckpointWriter(tmp_path / "file", source, scheme="a")


def test_an_empty_folder_is_filled(tiny_model_dir, write_coded, tmp_path):
    (tmp_path / "out").mkdir()
    source = open_checkpoint(tiny_model_dir("llama"))
    assert open_checkpoint(write_coded(tmp_path / "out", source, blocks_only))


def test_names_and_shapes_that_do_not_fit_are_refused(tiny_model_dir, code_weight, tmp_path):
    source = open_checkpoint(tiny_model_dir("llama"))
    writer = CheckpointWriter(tmp_path / "out", source, scheme="a")
    down = "model.layers.0.mlp.down_proj"
    codes = {down: code_weight(source.get(f"{down}.weight"), INT4)}
    with pytest.raises(ConfigError, match=f"no linear layer '{down}' in layer 1"):
        writer.add_layer(1, codes)
    with pytest.raises(ConfigError, match=r"no tensor 'model\.norm\.weight' in layer 0"):
        writer.add_layer(0, codes, {"model.norm.weight": torch.zeros(64)})
    norm = "model.layers.0.input_layernorm.weight"
    with pytest.raises(ConfigError, match=r"has shape \(63,\), the model demands \(64,\)"):
        writer.add_layer(0, codes, {norm: torch.zeros(63)})
    with pytest.raises(ConfigError, match=r"down_proj\.weight has shape \(64, 64\)"):
        writer.add_layer(0, {down: code_weight(torch.zeros(64, 64), INT4)})
    assert not writer.has_layer(0)


def test_layers_of_one_input_are_coded_alike(tiny_model_dir, code_weight, tmp_path):
    source = open_checkpoint(tiny_model_dir("llama"))
    writer = CheckpointWriter(tmp_path / "out", source, scheme="a")
    at = "model.layers.0.mlp."
    codes = {
        f"{at}{name}_proj": code_weight(source.get(f"{at}{name}_proj.weight"), fmt)
        for name, fmt in (("gate", INT4), ("up", INT8))
    }
    with pytest.raises(ConfigError, match=r"gate_proj and .*up_proj read the same input"):
        writer.add_layer(0, codes)
    del codes[f"{at}up_proj"]
    with pytest.raises(ConfigError, match="read the same input"):
        writer.add_layer(0, codes)


def test_nothing_coded_is_no_quantized_folder(tiny_model_dir, tmp_path):
    source = open_checkpoint(tiny_model_dir("llama"))
    writer = CheckpointWriter(tmp_path / "out", source, scheme="a")
    for index in (0, 1, 2, None):
        writer.add_layer(index, {})
    with pytest.raises(ConfigError, match="No layer"):
        writer.finish()
    assert not (tmp_path / "out").exists()


def test_scales_of_another_type_are_refused(tiny_model_dir, code_weight, tmp_path):
    """A server would round them to the type it runs in, and the codes were chosen without that."""
    source = open_checkpoint(tiny_model_dir("llama", dtype=torch.bfloat16))
    writer = CheckpointWriter(tmp_path / "out", source, scheme="a")
    with pytest.raises(WeightFormatError, match="no bfloat16 number"):
        add(writer, source, code_weight, 0)


def test_tokenizer_template_and_end_tokens_come_along(tiny_model_dir, write_coded, tmp_path):
    from transformers import AutoTokenizer

    folder = Path(shutil.copytree(tiny_model_dir("llama"), tmp_path / "source"))
    generation = {"eos_token_id": [1, 3], "temperature": 0.7}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    out = write_coded(tmp_path / "out", open_checkpoint(folder), blocks_only)
    assert json.loads((out / "generation_config.json").read_text()) == generation
    assert open_checkpoint(out).config.eos_token_ids == (1, 3)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    messages = [{"role": "user", "content": "Hello 12"}]
    ours = open_checkpoint(folder).tokenizer().apply_chat_template(messages)
    theirs = AutoTokenizer.from_pretrained(out).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert theirs == ours
