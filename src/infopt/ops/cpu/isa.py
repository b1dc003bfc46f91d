"""Which vector instructions the kernels are compiled for.

One library is compiled per instruction set, on the machine that runs it, and the best set that the
processor has is chosen at run time. ``INFOPT_CPU_ISA`` asks for a lower one.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from infopt.errors import ConfigError, nearest

ENVIRONMENT_VARIABLE = "INFOPT_CPU_ISA"
_X86 = ("x86_64", "amd64")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """A set of vector instructions.

    Attributes:
        name: As given in ``INFOPT_CPU_ISA``.
        features: What the processor must list in ``/proc/cpuinfo``.
        flags: What the compiler is told.
    """

    name: str
    features: frozenset[str]
    flags: tuple[str, ...]


def _extend(
    base: InstructionSet, name: str, features: str, compiler_names: str | None = None
) -> InstructionSet:
    names = (compiler_names or features).split()
    return InstructionSet(
        name,
        base.features | frozenset(features.split()),
        base.flags + tuple(f"-m{flag}" for flag in names),
    )


PORTABLE = InstructionSet("portable", frozenset(), ())
AVX2 = _extend(PORTABLE, "avx2", "avx2 fma f16c")
AVX512 = _extend(AVX2, "avx512", "avx512f avx512bw avx512dq avx512vl")
AVX512_BF16 = _extend(AVX512, "avx512_bf16", "avx512_vnni avx512_bf16", "avx512vnni avx512bf16")
AMX = _extend(AVX512_BF16, "amx", "amx_tile amx_bf16 amx_int8", "amx-tile amx-bf16 amx-int8")

INSTRUCTION_SETS = {isa.name: isa for isa in (AMX, AVX512_BF16, AVX512, AVX2, PORTABLE)}
"""Best first."""


def cpu_features() -> frozenset[str]:
    """Return the processor's feature names as Linux lists them; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    if platform.machine().lower() not in _X86 or not path.exists():
        return frozenset()
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def choose_isa(features: frozenset[str], wanted: str | None) -> InstructionSet:
    """Return the best instruction set, or the wanted one.

    Args:
        features: What the processor has.
        wanted: Name of a set, or None.

    Raises:
        ConfigError: If the wanted set is unknown or the processor lacks it.
    """
    if not wanted:
        return next(isa for isa in INSTRUCTION_SETS.values() if isa.features <= features)
    if wanted not in INSTRUCTION_SETS:
        raise ConfigError(
            f"{ENVIRONMENT_VARIABLE}={wanted!r} is unknown.{nearest(wanted, INSTRUCTION_SETS)}",
            field=ENVIRONMENT_VARIABLE,
            value=wanted,
            remedy=f"Known: {', '.join(INSTRUCTION_SETS)}.",
        )
    missing = INSTRUCTION_SETS[wanted].features - features
    if missing:
        raise ConfigError(
            f"{ENVIRONMENT_VARIABLE}={wanted!r} needs {', '.join(sorted(missing))}, which this "
            "processor does not have.",
            field=ENVIRONMENT_VARIABLE,
            value=wanted,
            remedy=f"Unset it: {choose_isa(features, None).name} would be taken.",
        )
    return INSTRUCTION_SETS[wanted]


def current_isa() -> InstructionSet:
    """Return the instruction set that kernels are compiled for in this process."""
    return choose_isa(cpu_features(), os.environ.get(ENVIRONMENT_VARIABLE))
