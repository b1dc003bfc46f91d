"""Checkpoints in AWQ's layout ``gemm``.

    qweight  int32 (in, out / 8)        qzeros  int32 (groups, out / 8)      scales (groups, out)
    w[o, i] = scales[g, o] * (q[i, o] - z[g, o]),   g = i // group_size

A word holds eight neighbouring outputs, from the lowest four bits on in the order
0, 2, 4, 6, 1, 3, 5, 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from infopt.errors import CheckpointError
from infopt.models.packed import StoredTensor
from infopt.quantization.coded import CodedWeight, WeightFormat
from infopt.quantization.layer_parts import (
    FLOATS,
    PartSpec,
    Settings,
    check_parts,
    num_groups,
    read_scale,
    unpack,
    with_even_groups,
    without_middle_zeros,
)

BITS = 4
_IN_WORD = 32 // BITS
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of outputs 0 to 7 in a word

_USED = frozenset({"quant_method", "bits", "group_size", "zero_point", "version", "sym"})
_USED |= {"format", "checkpoint_format", "pack_dtype", "modules_to_not_convert"}
# How other tools run such a file, or how it was made.
_HARMLESS = frozenset({"backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "lm_head"})
_HARMLESS |= {"exllama_config", "meta", "desc_act", "true_sequential", "static_groups", "method"}
_HARMLESS |= {"damp_percent", "uuid", "pack_impl"}


class AWQReader:
    """Reads layers of an AWQ checkpoint; those without ``qweight`` are dense.

    Args:
        values: The ``quantization_config``.

    Raises:
        UnsupportedModelError: Names the setting that is not supported.
    """

    parts = frozenset({"qweight", "qzeros", "scales"})

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Check the settings."""
        settings = Settings(values, "awq")
        settings.check_keys(_USED, _HARMLESS)
        settings.get("bits", int, BITS, lambda bits: bits == BITS)
        settings.get("pack_dtype", str, "int32", lambda kind: kind == "int32")
        for key in ("version", "format", "checkpoint_format"):
            settings.get(key, str, "gemm", lambda layout: layout.lower() == "gemm")
        self._has_zeros: bool = settings.get("zero_point", bool, True)
        size = settings.get("group_size", int, 128, lambda n: n > 0 or n == -1)
        self._group_size: int | None = None if size == -1 else size

    def is_coded(
        self, layer: str, shape: tuple[int, int], found: Mapping[str, StoredTensor]
    ) -> bool:
        """Tell whether a layer is coded, and check it (see `PackedReader`)."""
        if not found.keys() & self.parts:
            return False
        num_out, num_in = shape
        if num_out % _IN_WORD:
            raise CheckpointError(
                f"{layer} has {num_out} outputs, which AWQ's words of {_IN_WORD} do not divide.",
                field=layer,
                value=num_out,
            )
        groups = num_groups(num_in, self._group_size)
        words = num_out // _IN_WORD
        specs = {
            "qweight": PartSpec(("I32",), ((num_in, words),)),
            "qzeros": PartSpec(("I32",), ((groups, words),), is_required=self._has_zeros),
            "scales": PartSpec(FLOATS, ((groups, num_out),)),
        }
        check_parts(layer, found, specs)
        return True

    def read(
        self, layer: str, shape: tuple[int, int], tensors: Mapping[str, torch.Tensor]
    ) -> CodedWeight:
        """Return the codes of a layer."""
        num_out, num_in = shape
        groups = num_groups(num_in, self._group_size)
        zeros = tensors.get("qzeros")
        coded = CodedWeight(
            WeightFormat(BITS, self._group_size, symmetric=zeros is None),
            _unpack(tensors["qweight"], (num_in, num_out)),
            read_scale(tensors["scales"].T),
            None if zeros is None else _unpack(zeros, (groups, num_out)),
        )
        coded = without_middle_zeros(with_even_groups(coded))
        coded.check(layer)
        return coded


def _unpack(words: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return the codes ``(out, rows)`` of words ``(rows, out / 8)``."""
    codes = unpack(words, BITS, shape, dim=1)
    places = codes.view(shape[0], -1, _IN_WORD)[:, :, list(_PLACES)]
    return places.reshape(shape).T.contiguous()
