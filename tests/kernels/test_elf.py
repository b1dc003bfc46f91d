"""The reader of cubins agrees with what ptxas says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import triton

from infopt.kernels.triton_ops.elf import CubinError, read_needs

PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 out)
{
    .reg .b64 %rd<8>;
    .reg .f32 %f<40>;
    .reg .b32 %r<4>;
    .local .align 8 .b8 depot[LOCAL];
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    mov.u64 %rd4, depot;
    add.u64 %rd5, %rd4, %rd2;
    ld.global.f32 %f1, [%rd3];
    st.local.f32 [%rd5], %f1;
    ld.local.f32 %f2, [%rd4];
    st.global.f32 [%rd3], %f2;
    ret;
}
"""


@pytest.mark.skipif(not PTXAS.exists(), reason="this triton brings no ptxas")
@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("local_bytes", [64, 256])
def test_equals_ptxas(tmp_path, arch, local_bytes):
    source, cubin = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
    source.write_text(PTX.replace("LOCAL", str(local_bytes)))
    ptxas = PTXAS if arch < 100 else PTXAS.with_name("ptxas-blackwell")
    said = subprocess.run(
        [ptxas, "-v", f"--gpu-name=sm_{arch}", source, "-o", cubin],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    needs = read_needs(cubin.read_bytes())
    assert needs.registers == int(re.search(r"Used (\d+) registers", said)[1])
    assert needs.frame_bytes == int(re.search(r"(\d+) bytes stack frame", said)[1]) == local_bytes


@pytest.mark.parametrize("content", [b"", b"not a cubin", b"\x7fELF\x01" + b"\0" * 100])
def test_other_files_are_refused(content):
    with pytest.raises(CubinError, match="no 64-bit ELF"):
        read_needs(content)


def test_a_program_without_kernels_is_refused():
    import sys

    with pytest.raises(CubinError, match="nothing about registers"):
        read_needs(Path(sys.executable).resolve().read_bytes())
