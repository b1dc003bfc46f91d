"""`infopt doctor --model`: sizes without loading anything, of architectures that do not run too."""

import json

import pytest

from infopt.doctor_model import examine_model, model_size
from infopt.errors import ConfigError, UnsupportedModelError

DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 4096,
}


def details(section):
    return {check.name: check.detail for check in section.checks}


def test_a_tiny_model_and_its_pool(tiny_model_dir):
    folder = str(tiny_model_dir("llama"))
    found = details(examine_model(folder, kv_gib=3 * 2 * 2 * 16 * 2 * 512 / 2**30))
    assert "0.375 KiB per token" in found["keys and values"]
    assert "limit is 512 tokens" in found["keys and values"]
    held = next(text for name, text in found.items() if name.endswith("(auto)"))
    assert held == "1 of 512 tokens"  # three layers of two heads of 16, as keys and as values
    assert "million" in found["weights"]
    assert "7.5 slots" in found["waste of pages"]


def test_windows_are_named(tiny_model_dir):
    found = details(examine_model(str(tiny_model_dir("gemma3_text"))))
    assert "2 of them keep 24 tokens" in found["keys and values"]


def test_an_architecture_that_does_not_run_is_sized_from_its_description(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK))
    size = model_size(str(tmp_path))
    assert size.shape.bytes_per_token() == 70_272
    assert "does not run" in details(examine_model(str(tmp_path)))["weights"]


def test_a_description_without_sizes_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(UnsupportedModelError, match="num_hidden_layers"):
        examine_model(str(tmp_path))


def test_memory_must_be_positive(tiny_model_dir):
    with pytest.raises(ConfigError, match="above 0"):
        examine_model(str(tiny_model_dir("llama")), kv_gib=0)


def test_the_command_prints_it(run_cli, tiny_model_dir):
    report = json.loads(run_cli("doctor", "--json", "--model", str(tiny_model_dir("llama"))).stdout)
    (section,) = report.values()
    assert {"weights", "keys and values", "waste of pages"} <= {check["name"] for check in section}


def test_memory_without_a_model_is_refused(run_cli):
    """Pins: it changed nothing, and nothing said so."""
    assert "needs --model" in run_cli("doctor", "--kv-gib", "1", ok=False).output
