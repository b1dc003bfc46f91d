"""Checkpoints in GPTQ's layout, formats ``gptq`` (version 1) and ``gptq_v2``.

    qweight  int32 (in * bits / 32, out)      qzeros  int32 (groups, out * bits / 32)
    scales   (groups, out)                    g_idx   int32 (in,), group of each input
    w[o, i] = scales[g, o] * (q[i, o] - z[g, o]),   g = g_idx[i]

Version 1 stores ``z - 1`` modulo the number of codes, version 2 stores z.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
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
    num_words,
    read_scale,
    unpack,
    with_even_groups,
    without_middle_zeros,
)

BITS = (2, 3, 4, 8)
FORMATS = ("gptq", "gptq_v2")

_USED = frozenset({"quant_method", "bits", "group_size", "desc_act", "sym", "dynamic"})
_USED |= {"checkpoint_format", "format", "is_marlin_format", "pack_dtype"}
_OVERRIDABLE = frozenset({"bits", "group_size", "desc_act", "sym"})
# How such a file was made, or how other tools run it.
_HARMLESS = frozenset({"damp_percent", "damp_auto_increment", "static_groups", "true_sequential"})
_HARMLESS |= {"model_name_or_path", "model_file_base_name", "meta", "tokenizer", "dataset", "mse"}
_HARMLESS |= {"batch_size", "use_exllama", "disable_exllama", "exllama_config", "use_cuda_fp16"}
_HARMLESS |= {"max_input_length", "cache_block_outputs", "module_name_preceding_first_block"}
_HARMLESS |= {"block_name_to_quantize", "modules_in_block_to_quantize", "pad_token_id", "backend"}
_HARMLESS |= {"model_seqlen", "lm_head", "parallel_packing", "uuid", "hyb_act", "pack_impl"}
_HARMLESS |= {"method", "modules_to_not_convert", "damp_auto", "act_group_aware", "rotation"}


@dataclass(frozen=True, slots=True)
class _LayerSettings:
    bits: int
    group_size: int | None


class GPTQReader:
    """Reads layers of a GPTQ checkpoint; those without ``qweight`` are dense.

    Args:
        values: The ``quantization_config``.

    Raises:
        UnsupportedModelError: Names the setting that is not supported.
    """

    parts = frozenset({"qweight", "qzeros", "scales", "g_idx"})

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Check the settings."""
        settings = Settings(values, "gptq")
        settings.check_keys(_USED, _HARMLESS)
        settings.get("pack_dtype", str, "int32", lambda kind: kind == "int32")
        settings.get("is_marlin_format", bool, False, lambda is_marlin: not is_marlin)
        settings.get("rotation", str, "", lambda rotation: not rotation)
        named = [settings.get(k, str, None, FORMATS.__contains__) for k in _FORMAT_KEYS]
        # Where both are given they agree but for old files, whose `format` names the tool's own.
        self._stored_below = 1 if (named[0] or named[1] or "gptq") == "gptq" else 0
        self._default = _layer_settings(settings)
        self._overrides = _overrides(settings)

    def is_coded(
        self, layer: str, shape: tuple[int, int], found: Mapping[str, StoredTensor]
    ) -> bool:
        """Tell whether a layer is coded, and check it (see `PackedReader`)."""
        if not found.keys() & self.parts:
            return False
        settings, (num_out, num_in) = self._settings(layer), shape
        groups = num_groups(num_in, settings.group_size)
        specs = {
            "qweight": PartSpec(("I32",), ((num_words(num_in, settings.bits), num_out),)),
            "qzeros": PartSpec(("I32",), ((groups, num_words(num_out, settings.bits)),)),
            "scales": PartSpec(FLOATS, ((groups, num_out),)),
            "g_idx": PartSpec(("I32",), ((num_in,),), is_required=False),
        }
        check_parts(layer, found, specs)
        return True

    def read(
        self, layer: str, shape: tuple[int, int], tensors: Mapping[str, torch.Tensor]
    ) -> CodedWeight:
        """Return the codes of a layer."""
        settings, (num_out, num_in) = self._settings(layer), shape
        bits, size = settings.bits, settings.group_size
        groups = num_groups(num_in, size)
        stored = unpack(tensors["qzeros"], bits, (groups, num_out), dim=1)
        zeros = (stored + self._stored_below) & ((1 << bits) - 1)
        coded = CodedWeight(
            WeightFormat(bits, size, symmetric=False),
            unpack(tensors["qweight"], bits, (num_in, num_out), dim=0).T.contiguous(),
            read_scale(tensors["scales"].T),
            zeros.T.contiguous(),
            group_index=_group_index(tensors.get("g_idx"), size or num_in, groups, layer),
        )
        if coded.group_index is None:
            coded = with_even_groups(coded)
        coded.format.check(num_in, layer)
        coded = without_middle_zeros(coded)
        coded.check(layer)
        return coded

    def _settings(self, layer: str) -> _LayerSettings:
        for pattern, settings in self._overrides:
            if pattern.match(layer):
                return settings
        return self._default


_FORMAT_KEYS = ("checkpoint_format", "format")


def _layer_settings(settings: Settings) -> _LayerSettings:
    size = settings.get("group_size", int, 128, lambda n: n > 0 or n == -1)
    bits = settings.get("bits", int, 4, BITS.__contains__)
    return _LayerSettings(bits, None if size == -1 else size)


def _overrides(settings: Settings) -> list[tuple[re.Pattern[str], _LayerSettings]]:
    """Return the settings of layers that differ: ``dynamic`` maps patterns of names to values.

    A pattern that starts with ``-:`` names layers that are not coded, which is seen from the file.
    """
    dynamic = settings.values.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise settings.refuse("dynamic")
    found = []
    for pattern, values in dynamic.items():
        if pattern.startswith("-:"):
            continue
        own = Settings({**settings.values, **values}, f"gptq, dynamic {pattern!r}")
        Settings(values, f"gptq, dynamic {pattern!r}").check_keys(_OVERRIDABLE, _HARMLESS)
        found.append((re.compile(pattern.removeprefix("+:")), _layer_settings(own)))
    return found


def _group_index(
    g_idx: torch.Tensor | None, group_size: int, groups: int, layer: str
) -> torch.Tensor | None:
    """Return the group of each input, or None where groups are neighbours.

    Raises:
        CheckpointError: If it names a group that does not exist.
    """
    if g_idx is None or torch.equal(g_idx.long(), torch.arange(len(g_idx)) // group_size):
        return None
    low, high = int(g_idx.min()), int(g_idx.max())
    if low < 0 or high >= groups:
        raise CheckpointError(
            f"{layer}.g_idx names groups {low} to {high}, and there are {groups}.",
            field=f"{layer}.g_idx",
            value=(low, high),
        )
    return g_idx
