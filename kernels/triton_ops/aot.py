"""Compiles kernels ahead of time, for GPUs that are not there, and says what they need.

    python -m infopt.kernels.triton_ops.aot --arch 90 --case attention --out needs.json

The launchers themselves say what to compile: they run on tensors without memory (device ``meta``),
and each launch is recorded instead of done. So what is compiled here is what would run: the same
types, block sizes, warps and specialisations. Must run without TRITON_INTERPRET.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from infopt.errors import BackendError
from infopt.kernels.triton_ops import common
from infopt.kernels.triton_ops.elf import read_needs

ARCHITECTURES = (80, 90, 100)
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that one block may take."""

REGISTER_FILE = 65536
"""Registers of a multiprocessor, 32 bits each."""

_POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_DIVISIBLE = [["tt.divisibility", 16]]


@dataclass(frozen=True, slots=True)
class Launch:
    """A recorded launch: all that decides what is compiled."""

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    divisible: tuple[int, ...]
    options: dict[str, int]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one kernel needs on one architecture.

    Attributes:
        case: Which launch it is.
        kernel: Name of the kernel.
        arch: Compute capability times ten.
        registers: Per thread.
        spill_bytes: Local memory per thread.
        shared_bytes: Per block.
        num_warps: Per block.
    """

    case: str
    kernel: str
    arch: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    num_warps: int

    @property
    def blocks_by_registers(self) -> int:
        """Blocks that the register file of a multiprocessor holds."""
        per_warp = -(-self.registers * 32 // 256) * 256  # given out in units of 256
        return REGISTER_FILE // (per_warp * self.num_warps)


@contextmanager
def recorded_launches() -> Iterator[list[Launch]]:
    """Record launches instead of doing them; tensors may be on the device ``meta``.

    Raises:
        BackendError: If kernels are interpreted in this process.
    """
    if common.is_interpreted():
        raise BackendError(
            "kernels are interpreted in this process, so they cannot be compiled.",
            field="TRITON_INTERPRET",
            value="1",
            remedy="Start a process without TRITON_INTERPRET.",
        )
    launches: list[Launch] = []

    def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        del grid, warmup
        launches.append(_describe(kernel, args, named))

    with (
        mock.patch.object(JITFunction, "run", record),
        mock.patch.object(common, "why_not_device", lambda _device: None),
    ):
        yield launches


def compile_launch(launch: Launch, arch: int, case: str = "") -> Compiled:
    """Compile one recorded launch for one architecture.

    Args:
        launch: From :func:`recorded_launches`.
        arch: 80, 90, 100, ...
        case: Name for the result.
    """
    source = ASTSource(
        launch.kernel,
        launch.signature,
        launch.constants,
        {(index,): _DIVISIBLE for index in launch.divisible},
    )
    target = GPUTarget("cuda", arch, 32)
    compiled = triton.compile(source, target=target, options=dict(launch.options))
    needs = read_needs(compiled.asm["cubin"])
    return Compiled(
        case=case,
        kernel=launch.kernel.__name__,
        arch=arch,
        registers=needs.registers,
        spill_bytes=needs.frame_bytes,
        shared_bytes=compiled.metadata.shared,
        num_warps=compiled.metadata.num_warps,
    )


def compile_case(case: str, run: Callable[[], Any], archs: tuple[int, ...]) -> list[Compiled]:
    """Compile everything that a case launches, each kernel variant once."""
    with recorded_launches() as launches:
        run()
    return [compile_launch(launch, arch, case) for launch in launches for arch in archs]


def summarize(compiled: list[Compiled]) -> str:
    """Return a Markdown table: per kernel, the most that any of its variants needs."""
    kernels: dict[str, list[Compiled]] = {}
    for one in compiled:
        kernels.setdefault(one.kernel, []).append(one)
    lines = [
        "| kernel | variants | registers | spilled bytes | shared memory, KiB | warps |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in kernels.items():
        archs = sorted({row.arch for row in rows})
        registers = [max(row.registers for row in rows if row.arch == arch) for arch in archs]
        spilled = max(row.spill_bytes for row in rows)
        shared = max(row.shared_bytes for row in rows) / 1024
        warps = sorted({row.num_warps for row in rows})
        lines.append(
            f"| `{name}` | {len(rows)} | {' / '.join(map(str, registers))} | {spilled} "
            f"| {shared:.1f} | {', '.join(map(str, warps))} |"
        )
    return "\n".join(lines)


def _describe(kernel: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Launch:
    values = dict(zip(kernel.arg_names, args, strict=False))
    values |= {name: value for name, value in named.items() if name in kernel.arg_names}
    options = {name: value for name, value in named.items() if name not in kernel.arg_names}
    signature, constants, divisible = {}, {}, []
    for index, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        signature[parameter.name] = _type_of(value)
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            divisible.append(index)
    return Launch(kernel, signature, constants, tuple(divisible), options)


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def main() -> None:
    """Compile cases and write what they need as JSON."""
    from infopt.kernels.triton_ops.aot_cases import CASES

    parser = argparse.ArgumentParser(description="Compiles kernels ahead of time.")
    parser.add_argument("--arch", type=int, nargs="+", default=list(ARCHITECTURES))
    parser.add_argument("--case", nargs="+", default=list(CASES), help="names, or their beginning")
    parser.add_argument("--out", type=Path, help="JSON file (default: a table on the screen)")
    options = parser.parse_args()
    found = []
    for name, run in CASES.items():
        if any(name.startswith(wanted) for wanted in options.case):
            found += compile_case(name, run, tuple(options.arch))
    if options.out is None:
        print(summarize(found))
    else:
        options.out.write_text(json.dumps([asdict(row) for row in found], indent=1))


if __name__ == "__main__":
    main()
