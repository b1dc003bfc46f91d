"""The factories of nf4 and llm.int8, and how bitsandbytes is reached."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from infopt.errors import CheckpointError, DependencyError
from infopt.quantization.bnb import make_llm_int8, make_nf4

FACTORIES = (make_nf4, make_llm_int8)
HUB = """
def get_kernel(*args, **kwargs):
    raise SystemExit("machine code was fetched from the hub")
"""
IMPORT = """
import sys
from infopt.quantization.bnb_library import functional
import kernels
functional().quantize_4bit
assert kernels.__file__ == sys.modules["kernels"].__file__
"""


@pytest.mark.parametrize("make", FACTORIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_takes_inputs_of_its_weights_type(make, dtype):
    weight, bias = torch.randn(64, 128).to(dtype), torch.randn(64).to(dtype)
    linear = make(weight, bias)
    assert (linear.in_features, linear.out_features) == (128, 64)
    x = torch.randn(3, 128).to(dtype)
    y = linear(x)
    assert y.dtype == dtype
    expected = torch.nn.functional.linear(x.float(), weight.float(), bias.float())
    assert float((y.float() - expected).norm() / expected.norm()) < 0.12


@pytest.mark.parametrize("make", FACTORIES)
def test_a_damaged_layer_is_named(make):
    with pytest.raises(CheckpointError, match=r"layers\.3\.down"):
        make(torch.full((2, 64), float("nan")), layer="layers.3.down")


@pytest.mark.parametrize("make", FACTORIES)
def test_without_the_package_the_remedy_is_named(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(DependencyError, match="bitsandbytes") as caught:
        make(torch.randn(2, 64))
    assert "pip install bitsandbytes" in str(caught.value.remedy)


def test_its_import_is_silent_and_fetches_nothing(tmp_path: Path):
    """Where the package ``kernels`` is installed, the import asks a hub for machine code."""
    (tmp_path / "kernels.py").write_text(HUB)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{IMPORT}"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_hub_would_be_asked_otherwise(tmp_path: Path):
    """Else the test above could not fail; only processors with the kernel ask at all."""
    from infopt.quantization.bnb_library import functional

    if not functional().has_avx512bf16():
        pytest.skip("no AVX-512 for bfloat16, so the library has nothing to ask for")
    (tmp_path / "kernels.py").write_text(HUB)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport bitsandbytes"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert "fetched from the hub" in result.stderr
