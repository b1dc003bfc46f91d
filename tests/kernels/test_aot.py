"""Every kernel compiles for GPUs that are not here, and fits them.

Compilation needs a process in which Triton does not interpret. Triton keeps what it has compiled in
infopt's cache folder, so a second run takes seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton

from infopt.errors import BackendError
from infopt.kernels.triton_ops import aot
from infopt.kernels.triton_ops.aot_cases import CASES
from infopt.user_cache import cache_dir

REPRESENTATIVE = (
    "rms_norm/bf16-4096-residual",
    "activation/silu-bf16",
    "rotary/bf16-d128-norms",
    "attention/decode-bf16-d128",
    "attention/prefill-bf16-d128",
    "attention/prefill-fp32-d128",
    "attention/decode-bf16-d128-int8-pages",
    "attention/prefill-bf16-d128-int4-pages",
    "quantize_kv/int4-d128",
    "linear_int8/bf16-8rows",
    "linear_int4/bf16-8rows",
    "linear_fp8/bf16-2048rows",
    "linear_w8a8/bf16-2048rows",
    "grouped_linear/bf16-64",
    "router/sigmoid-256-groups",
    "rejection/draft",
    "compact/bf16-d128",
)
OLD_COMPILER = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
SPILL_LIMIT = 16 if OLD_COMPILER else 0
"""Bytes a thread: the ptxas of Triton 3.6 spills two registers of one float32 variant."""

STREAMING = ("rms_norm", "activation", "rotary", "compact")
"""Kernels that wait for memory: many threads must fit a multiprocessor."""


def compile_cases(cases: tuple[str, ...], folder: Path) -> list[aot.Compiled]:
    """Compile cases for all architectures, in two other processes."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {
        "TRITON_CACHE_DIR": str(cache_dir() / "triton"),
        "TRITON_DEFAULT_FP_FUSION": "1",
    }
    compiled: list[aot.Compiled] = []
    halves = {folder / f"{i}.json": cases[i::2] for i in range(2)}
    command = [sys.executable, "-m", aot.__name__]
    running = [
        subprocess.Popen(
            [*command, "--case", *half, "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for out, half in halves.items()
    ]
    for process, out in zip(running, halves, strict=True):
        _, errors = process.communicate(timeout=1200)
        assert process.returncode == 0, errors
        compiled += [aot.Compiled(**row) for row in json.loads(out.read_text())]
    return compiled


def assert_fits(compiled: list[aot.Compiled]) -> None:
    for one in compiled:
        assert one.spill_bytes <= SPILL_LIMIT, one
        assert one.registers <= 255, one
        assert one.shared_bytes <= aot.SHARED_LIMIT[one.arch], one
        assert one.blocks_by_registers >= 1, one
        if one.case.startswith(STREAMING):
            assert one.blocks_by_registers * one.num_warps >= 32, one


@pytest.fixture(scope="module")
def representative(tmp_path_factory) -> list[aot.Compiled]:
    return compile_cases(REPRESENTATIVE, tmp_path_factory.mktemp("aot"))


@pytest.mark.parametrize("case", REPRESENTATIVE)
def test_case_fits(representative, case):
    compiled = [one for one in representative if one.case == case]
    assert {one.arch for one in compiled} == set(aot.ARCHITECTURES)
    assert_fits(compiled)


def test_every_op_is_represented():
    assert set(REPRESENTATIVE) <= set(CASES)
    assert {c.partition("/")[0] for c in REPRESENTATIVE} == {c.partition("/")[0] for c in CASES}


@pytest.mark.slow
def test_all_cases_fit(tmp_path):
    compiled = compile_cases(tuple(CASES), tmp_path)
    assert {one.case for one in compiled} == set(CASES)
    assert_fits(compiled)


def test_every_kernel_file_has_a_case():
    """A kernel that is never compiled here would first fail on a GPU."""
    folder = Path(aot.__file__).parent
    helpers = {"__init__", "aot", "aot_cases", "common", "elf", "products", "references"}
    helpers |= {"attention_kernel", "attention_blocks", "attention_old_rows"}
    ops = {path.stem for path in folder.glob("*.py")} - helpers
    assert ops == {case.partition("/")[0] for case in CASES}


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled in this process")
def test_an_interpreting_process_refuses():
    with pytest.raises(BackendError, match="interpreted"), aot.recorded_launches():
        pass


def test_blocks_by_registers():
    base = {"case": "", "kernel": "", "arch": 80, "spill_bytes": 0, "shared_bytes": 0}
    assert aot.Compiled(**base, registers=32, num_warps=4).blocks_by_registers == 16
    assert aot.Compiled(**base, registers=255, num_warps=8).blocks_by_registers == 1
    assert aot.Compiled(**base, registers=255, num_warps=16).blocks_by_registers == 0


def test_summary_shows_the_most_of_each_kernel():
    base = {"case": "", "kernel": "norm", "spill_bytes": 0, "num_warps": 4}
    rows = [
        aot.Compiled(**base, arch=80, registers=30, shared_bytes=512),
        aot.Compiled(**base, arch=80, registers=40, shared_bytes=2048),
        aot.Compiled(**base, arch=90, registers=20, shared_bytes=0),
    ]
    assert aot.summarize(rows).splitlines()[2] == "| `norm` | 3 | 40 / 20 | 0 | 2.0 | 4 |"


def test_the_readme_lists_every_kernel(representative):
    readme = (Path(__file__).parents[2] / "kernels" / "README.md").read_text("utf-8")
    missing = {one.kernel for one in representative if f"| `{one.kernel}` |" not in readme}
    assert not missing
