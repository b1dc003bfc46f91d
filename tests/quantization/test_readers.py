"""Quantized checkpoints that nobody can read are refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from infopt.errors import CheckpointError, UnsupportedModelError
from infopt.models.checkpoint import open_checkpoint
from infopt.models.hf_config import hf_stored_dtype
from infopt.quantization.readers import READERS, make_reader


@pytest.mark.parametrize(
    "method", ["bitsandbytes", "fp8", "auto-round", "compressed_tensors", None]
)
def test_an_unknown_method_is_refused_with_the_known_ones(method):
    with pytest.raises(UnsupportedModelError, match=f"quant_method={method!r}") as error:
        make_reader({"quant_method": method})
    assert all(name in str(error.value) for name in READERS)


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_a_folder_of_an_unknown_method_is_refused(tiny_model_dir, tmp_path, key):
    folder = Path(shutil.copytree(tiny_model_dir("llama"), tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    settings = {"quant_method": "hqq"}
    (folder / "config.json").write_text(json.dumps(config | {key: settings}))
    assert hf_stored_dtype(folder) == "hqq"
    with pytest.raises(UnsupportedModelError, match="'hqq'"):
        open_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps(config | {key: "int4"}))
    with pytest.raises(CheckpointError, match=f"{key} in config.json is not a JSON object"):
        open_checkpoint(folder)
