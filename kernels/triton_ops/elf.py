"""Reads what a kernel needs from a cubin, without a GPU and without tools.

A cubin is an ELF file. ``.nv.info`` holds attributes: one format byte, one attribute byte, a size
or value of two bytes, then (format 4) the payload. The ones read here have payloads of a symbol
index and a number, both 32 bits: registers per thread, and bytes of the stack frame, which is where
registers are spilled to.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from infopt.errors import InfoptError

_SIZED = 4
_REGISTERS, _FRAME = 0x2F, 0x11


class CubinError(InfoptError):
    """A file is no cubin, or holds no kernel."""


@dataclass(frozen=True, slots=True)
class KernelNeeds:
    """What one kernel takes.

    Attributes:
        registers: Per thread.
        frame_bytes: Local memory per thread: spilled registers and arrays that are no registers.
    """

    registers: int
    frame_bytes: int


def read_needs(cubin: bytes) -> KernelNeeds:
    """Return what the kernel of a cubin needs (the most, if it holds several functions).

    Raises:
        CubinError: If this is no cubin with a kernel.
    """
    if cubin[:4] != b"\x7fELF" or cubin[4] != 2:
        raise CubinError("the compiled kernel is no 64-bit ELF file.", value=cubin[:5])
    numbers: dict[int, list[int]] = {_REGISTERS: [], _FRAME: []}
    for section in _sections(cubin, ".nv.info"):
        for attribute, payload in _attributes(section):
            if attribute in numbers:
                numbers[attribute].append(struct.unpack("<II", payload)[1])
    if not numbers[_REGISTERS]:
        raise CubinError("the cubin says nothing about registers.", value=len(cubin))
    return KernelNeeds(max(numbers[_REGISTERS]), max(numbers[_FRAME], default=0))


def _sections(elf: bytes, wanted: str) -> list[bytes]:
    """Return the contents of the sections with a name."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = headers[names_index][4]
    found = []
    for name, _kind, _flags, _address, offset, length in headers:
        end = elf.index(b"\0", names + name)
        if elf[names + name : end].decode("ascii") == wanted:
            found.append(elf[offset : offset + length])
    return found


def _attributes(section: bytes) -> list[tuple[int, bytes]]:
    """Return (attribute, payload) of each sized entry."""
    entries, at = [], 0
    while at + 4 <= len(section):
        form, attribute, length = struct.unpack_from("<BBH", section, at)
        at += 4
        if form == _SIZED:
            entries.append((attribute, section[at : at + length]))
            at += length
    return entries
