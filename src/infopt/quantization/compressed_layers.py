"""Tensors of compressed-tensors' layers: to `CodedWeight`, and from it.

    packed  weight_packed int32 (out, in * bits / 32), weight_shape int64 (2,)
    plain   weight int8 or float8_e4m3fn (out, in)
    both    weight_scale (out, groups); weight_zero_point, where there is one: packed along the
            outputs, int32 (out * bits / 32, groups), or plain int8 (out, groups);
            input_scale (1,) of static inputs

Integer codes are stored around zero: ``code - 2 ** (bits - 1)``, zero points alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from infopt.errors import CheckpointError, WeightFormatError
from infopt.models.packed import StoredTensor
from infopt.quantization.coded import FLOAT8, CodedWeight
from infopt.quantization.compressed_settings import PACKED, CompressedSettings, LayerSettings
from infopt.quantization.layer_parts import (
    FLOATS,
    PartSpec,
    check_parts,
    num_groups,
    num_words,
    pack,
    read_scale,
    unpack,
    with_even_groups,
)

_CODE_DTYPES = ("I8", "F8_E4M3")


class CompressedTensorsReader:
    """Reads layers of a compressed-tensors checkpoint.

    Args:
        values: The ``quantization_config``.

    Raises:
        UnsupportedModelError: Names the setting that is not supported.
        DependencyError: If compressed-tensors is not installed.
    """

    parts = frozenset({"weight_packed", "weight_shape", "weight_scale", "weight_zero_point"})
    parts |= {"weight_g_idx", "input_scale", "input_zero_point"}

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Parse the settings."""
        self._settings = CompressedSettings(values)

    def is_coded(
        self, layer: str, shape: tuple[int, int], found: Mapping[str, StoredTensor]
    ) -> bool:
        """Tell whether a layer is coded, and check it (see `PackedReader`)."""
        weight = found.get("weight")
        if not found.keys() & self.parts and weight is not None and weight.dtype in FLOATS:
            return False
        settings = self._settings.of(layer)
        if weight is not None and weight.dtype in FLOATS:
            raise CheckpointError(
                f"{layer} has scales, and its weight is stored as {weight.dtype}.",
                field=f"{layer}.weight",
                value=weight.dtype,
                remedy="Save the checkpoint compressed, or without its quantization_config.",
            )
        check_parts(layer, found, _specs(settings, shape))
        return True

    def read(
        self, layer: str, shape: tuple[int, int], tensors: Mapping[str, torch.Tensor]
    ) -> CodedWeight:
        """Return the codes of a layer."""
        settings = self._settings.of(layer)
        _check_values(layer, shape, settings, tensors)
        coded = CodedWeight(
            settings.weight,
            _read_codes(settings, shape, tensors),
            _per_output(read_scale(tensors["weight_scale"]), shape[0]),
            _read_zero(settings, shape, tensors.get("weight_zero_point")),
            settings.activation,
            tensors.get("weight_g_idx"),
        )
        if settings.activation.kind == "static":
            scale = float(tensors["input_scale"].float().reshape(()))
            coded.activation = replace(settings.activation, scale=scale)
        if coded.group_index is None:
            coded = with_even_groups(coded)
        coded.format.check(shape[1], layer)
        coded.check(layer)
        check_codes(layer, coded)
        return coded


def _specs(settings: LayerSettings, shape: tuple[int, int]) -> dict[str, PartSpec]:
    fmt, (num_out, num_in) = settings.weight, shape
    groups = num_groups(num_in, fmt.group_size)
    scale_shapes = ((1,), (), (1, 1)) if settings.is_per_tensor else ((num_out, groups),)
    specs = {
        "weight_scale": PartSpec(FLOATS, scale_shapes),
        "weight_zero_point": _zero_spec(settings, num_out, groups, scale_shapes),
    }
    if settings.is_packed:
        specs["weight_packed"] = PartSpec(("I32",), ((num_out, num_words(num_in, fmt.bits)),))
        specs["weight_shape"] = PartSpec(("I64", "I32"), ((2,),))
        specs["weight_g_idx"] = PartSpec(("I32", "I64"), ((num_in,),), is_required=False)
    else:
        dtype = "F8_E4M3" if fmt.number == "float" else "I8"
        specs["weight"] = PartSpec((dtype,), (shape,))
    if settings.activation.kind == "static":
        specs["input_scale"] = PartSpec(FLOATS, ((1,), ()))
        any_type = (*_CODE_DTYPES, *FLOATS)
        specs["input_zero_point"] = PartSpec(any_type, ((1,), ()), is_required=False)
    return specs


def _zero_spec(
    settings: LayerSettings, num_out: int, groups: int, plain: tuple[tuple[int, ...], ...]
) -> PartSpec:
    fmt = settings.weight
    if fmt.symmetric:  # may be there all the same, and is zero then (see _check_values)
        return PartSpec((*_CODE_DTYPES, *FLOATS), plain, is_required=False)
    if settings.is_packed and not settings.is_per_tensor:
        return PartSpec(("I8", "I32"), (*plain, (num_words(num_out, fmt.bits), groups)))
    return PartSpec(("I8",), plain)


def _check_values(
    layer: str,
    shape: tuple[int, int],
    settings: LayerSettings,
    tensors: Mapping[str, torch.Tensor],
) -> None:
    stored = tensors.get("weight_shape")
    if stored is not None and tuple(stored.tolist()) != shape:
        raise CheckpointError(
            f"{layer}.weight_shape says {tuple(stored.tolist())}, its configuration demands "
            f"{shape}.",
            field=f"{layer}.weight_shape",
            value=tuple(stored.tolist()),
        )
    zeros = {"input_zero_point": tensors.get("input_zero_point")}
    if settings.weight.symmetric:
        zeros["weight_zero_point"] = tensors.get("weight_zero_point")
    for part, zero in zeros.items():
        if zero is not None and bool(zero.float().any()):
            raise CheckpointError(
                f"{layer}.{part} is not zero, and its settings call it symmetric.",
                field=f"{layer}.{part}",
            )


def _read_codes(
    settings: LayerSettings, shape: tuple[int, int], tensors: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    fmt = settings.weight
    if settings.is_packed:
        return unpack(tensors["weight_packed"], fmt.bits, shape, dim=1)
    return tensors["weight"] if fmt.number == "float" else _shifted(tensors["weight"], fmt.middle)


def _read_zero(
    settings: LayerSettings, shape: tuple[int, int], zero: torch.Tensor | None
) -> torch.Tensor | None:
    fmt = settings.weight
    if zero is None or fmt.symmetric:
        return None
    if zero.dtype == torch.int32:
        groups = num_groups(shape[1], fmt.group_size)
        return unpack(zero, fmt.bits, (shape[0], groups), dim=0)
    return _per_output(_shifted(zero, fmt.middle), shape[0])


def _shifted(stored: torch.Tensor, middle: int) -> torch.Tensor:
    # A value outside the codes wraps around and is found by check_codes.
    return (stored.to(torch.int16) + middle).to(torch.uint8)


def _per_output(values: torch.Tensor, num_out: int) -> torch.Tensor:
    """Repeat the one value of a tensor for each output."""
    return (
        values
        if values.dim() == 2 and len(values) == num_out
        else values.reshape(1, 1).expand(num_out, 1).contiguous()
    )


def check_codes(layer: str, coded: CodedWeight) -> None:
    """Refuse codes that stand for no number of their format.

    Raises:
        CheckpointError: Names the layer.
    """
    fmt = coded.format
    if fmt.number == "float":
        wrong = (coded.codes.view(torch.uint8) & 0x7F) == 0x7F  # the NaNs of e4m3
    else:
        wrong = coded.codes >= fmt.num_codes if fmt.bits < 8 else torch.zeros(1, dtype=torch.bool)
    if bool(wrong.any()):
        raise CheckpointError(
            f"{layer} holds {int(wrong.sum())} codes that are no numbers of {fmt.describe()}.",
            field=layer,
        )


def layer_tensors(
    layer: str, coded: CodedWeight, storage: str, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return the tensors that stand for a layer by the last part of their names.

    Args:
        layer: Its name, for messages.
        coded: Its codes.
        storage: Format of its scheme, ``pack-quantized`` or a plain one.
        dtype: Type of the model, in which scales are stored, since that is what runs them.

    Raises:
        WeightFormatError: If a scale is no number of that type.
        CheckpointError: If tensors do not belong together or codes are out of range.
    """
    coded.check(layer)
    check_codes(layer, coded)
    fmt = coded.format
    tensors = {"weight_scale": exactly(coded.scale, dtype, f"{layer}: a weight scale")}
    if storage == PACKED:
        tensors["weight_packed"] = pack(coded.codes, fmt.bits, dim=1)
        tensors["weight_shape"] = torch.tensor(coded.codes.shape)
    else:
        is_float = coded.codes.dtype == FLOAT8
        tensors["weight"] = coded.codes if is_float else _stored(coded.codes, fmt.middle)
    if coded.zero is not None:
        is_packed = storage == PACKED
        zero = coded.zero
        tensors["weight_zero_point"] = (
            pack(zero, fmt.bits, dim=0) if is_packed else _stored(zero, fmt.middle)
        )
    if coded.activation.kind == "static":
        scale = torch.tensor([coded.activation.scale], dtype=torch.float64)
        tensors["input_scale"] = exactly(scale, dtype, f"{layer}: the input scale")
    return tensors


def _stored(codes: torch.Tensor, middle: int) -> torch.Tensor:
    return (codes.to(torch.int16) - middle).to(torch.int8)


def exactly(values: torch.Tensor, dtype: torch.dtype, what: str) -> torch.Tensor:
    """Return values in another type, of which they are numbers already.

    Raises:
        WeightFormatError: If one would have to be rounded: the codes were chosen for it.
    """
    stored = values.to(dtype)
    if not torch.equal(stored.to(torch.float64), values.to(torch.float64)):
        name = str(dtype).removeprefix("torch.")
        raise WeightFormatError(
            f"{what} is no {name} number, and the checkpoint is stored in {name}.",
            field="dtype",
            value=name,
            remedy="Round scales to the type of the checkpoint before codes are chosen, or store "
            "it in float32.",
        )
    return stored.contiguous()
