"""`infopt quantize`: the folder it writes, what it prints, and refusals."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt.cli.quantize import quantize
from infopt.models.checkpoint import open_checkpoint
from infopt.quantization import CalibrationSet

SHORT = ("--calibration-num-sequences", "2", "--calibration-length", "16")


@pytest.fixture
def model(tiny_model_dir: Callable[..., Path]) -> str:
    return str(tiny_model_dir("llama"))


def test_options_are_those_of_the_calibration_set() -> None:
    prefix = "calibration_"
    names = [n.removeprefix(prefix) for n in inspect.signature(quantize).parameters if prefix in n]
    assert names == [field.name for field in dataclasses.fields(CalibrationSet)]
    text = Path(inspect.getsourcefile(quantize) or "").read_text("utf-8")
    for field in dataclasses.fields(CalibrationSet):
        assert f'show_default="{field.default}"' in text


def test_a_folder_is_written_and_described(run_cli: Any, model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run_cli("quantize", model, "--scheme", "int4-rtn-g32", "--out", str(out))
    rows = [line.split() for line in result.stdout.splitlines()]
    cells = {row[0]: row[1:] for row in rows if row}
    num_weights = 3 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64)
    assert cells["int4-g32"] == ["21", f"{num_weights:,}", "4.500", "-", "0"]
    assert cells["int8"][:2] == ["1", f"{320 * 64:,}"]
    assert cells["all"][0] == "22"
    assert "no calibration" in result.stderr
    with open_checkpoint(out) as checkpoint:
        assert len(checkpoint.coded_layers) == 22


def test_calibration_options_reach_the_report(run_cli: Any, model: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    args = ["quantize", model, "--scheme", "int4-awq-g32", "--out", out, *SHORT]
    options = ["--calibration-domain", "random", "--calibration-seed", "3"]
    report = json.loads(run_cli(*args, *options, "--json").stdout)
    chosen = {"domain": "random", "num_sequences": 2, "length": 16, "seed": 3}
    assert report["calibration"] == chosen
    assert report["calibration_tokens"] == 32
    assert report["folder"] == out
    errors = [layer["relative_error"] for layer in report["layers"]]
    assert len(errors) == 22
    assert all(error > 0 for error in errors[:-1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scheme", ["int4-rtn-g32-asym", "w8a8-static", "fp8-static", "mixed-4.5"])
def test_every_kind_of_scheme_can_be_stored_in_every_type(
    run_cli: Any,
    tiny_model_dir: Callable[..., Path],
    tmp_path: Path,
    scheme: str,
    dtype: torch.dtype,
) -> None:
    """Scales, of weights and of inputs, are numbers of the folder's type."""
    model, out = str(tiny_model_dir("llama", dtype=dtype)), tmp_path / "out"
    options = () if "rtn" in scheme else SHORT
    run_cli("quantize", model, "--scheme", scheme, "--out", str(out), *options)
    with open_checkpoint(out) as checkpoint:
        assert checkpoint.stored_dtype("model.norm.weight") == dtype
        assert len(checkpoint.coded_layers) == 22


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scheme", "int4-awk-g32"], "int4-awq-g64"),
        (["--scheme", "nf4"], "no form in the compressed-tensors format"),
        (["--scheme", "q4_1"], "no form in the compressed-tensors format"),
        (["--scheme", "int4-rtn-g48"], "Sizes that fit: 32, 64"),
        (["--scheme", "int4-awq-g32", "--calibration-domain", "cod"], "Did you mean 'code'"),
        (["--scheme", "int4-awq-g32", "--calibration-length", "1"], "length"),
    ],
)
def test_refusals_are_messages(
    run_cli: Any, model: str, tmp_path: Path, options: list[str], message: str
) -> None:
    out = tmp_path / "out"
    result = run_cli("quantize", model, *options, "--out", str(out), ok=False)
    assert message in result.output
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_is_left_alone(run_cli: Any, model: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine")
    args = ["quantize", model, "--scheme", "int8", "--out", str(tmp_path)]
    assert "exists already" in run_cli(*args, ok=False).output
    assert [f.name for f in tmp_path.iterdir()] == ["a.txt"]
