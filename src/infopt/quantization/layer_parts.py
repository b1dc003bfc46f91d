"""Tensors of a packed layer: comparing headers with what is expected, and packing bits.

Packed words hold codes densely from the lowest bit on, in the order of one dimension, as
compressed-tensors and GPTQ store them; its own functions do the packing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from infopt.errors import CheckpointError, DependencyError, UnsupportedModelError, nearest
from infopt.models.packed import StoredTensor
from infopt.quantization.coded import CodedWeight, WeightFormat

FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class PartSpec:
    """What one tensor of a packed layer may look like.

    Attributes:
        dtypes: Types as safetensors names them.
        shapes: Shapes, any of them.
        is_required: Whether it must be there.
    """

    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    is_required: bool = True


def check_parts(
    layer: str, found: Mapping[str, StoredTensor], specs: Mapping[str, PartSpec]
) -> None:
    """Compare the tensors of a packed layer with what its settings demand.

    Raises:
        CheckpointError: Names the first tensor that is missing, misshapen or not expected.
    """
    for part, tensor in found.items():
        if part not in specs:
            raise CheckpointError(
                f"The file holds {layer}.{part}, for which the settings of this layer have no use."
                f"{nearest(part, specs)}",
                field=f"{layer}.{part}",
                value=tensor.dtype,
            )
    for part, spec in specs.items():
        name = f"{layer}.{part}"
        if part not in found:
            if spec.is_required:
                raise CheckpointError(
                    f"The file lacks {name}, and {layer} is packed.",
                    field=name,
                    remedy="The file is incomplete or its quantization_config is of another one.",
                )
        elif found[part].dtype not in spec.dtypes or found[part].shape not in spec.shapes:
            raise _unexpected(name, found[part], spec)


def _unexpected(name: str, tensor: StoredTensor, spec: PartSpec) -> CheckpointError:
    shapes = " or ".join(str(shape) for shape in spec.shapes)
    return CheckpointError(
        f"{name} is {tensor.dtype} {tensor.shape}, its quantization_config demands "
        f"{' or '.join(spec.dtypes)} {shapes}.",
        field=name,
        value=tensor.shape,
        remedy="The quantization_config may be of another file.",
    )


def num_words(num_codes: int, bits: int) -> int:
    """Return the 32-bit words that hold this many codes."""
    return math.ceil(num_codes * bits / 32)


def num_groups(in_features: int, group_size: int | None) -> int:
    """Return the groups of a row, the last one perhaps not full."""
    return 1 if group_size is None else math.ceil(in_features / group_size)


def pack(codes: torch.Tensor, bits: int, dim: Literal[0, 1]) -> torch.Tensor:
    """Pack uint8 codes ``(rows, columns)`` into int32 words along a dimension."""
    with needs_compressed_tensors():
        from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    signed = (codes.to(torch.int16) - (1 << (bits - 1))).to(torch.int8)
    words = pack_to_int32(_row_major(signed, dim), bits, 1)
    return _row_major(words, dim)


def unpack(
    words: torch.Tensor, bits: int, shape: tuple[int, int], dim: Literal[0, 1]
) -> torch.Tensor:
    """Return the uint8 codes ``shape`` of int32 words that were packed along a dimension."""
    with needs_compressed_tensors():
        from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    wide = torch.Size(shape if dim == 1 else shape[::-1])
    signed = unpack_from_int32(_row_major(words, dim), bits, wide, 1)
    codes = (signed.to(torch.int16) + (1 << (bits - 1))).to(torch.uint8)
    return _row_major(codes, dim)


def _row_major(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Return a copy with a dimension last.

    A copy, because `contiguous` leaves the strides of a single column alone, which the package
    then cannot view as bytes.
    """
    turned = values if dim == 1 else values.T
    return turned.clone(memory_format=torch.contiguous_format)


@contextlib.contextmanager
def needs_compressed_tensors() -> Iterator[None]:
    """Name the package that an import inside the ``with`` block needs.

    Raises:
        DependencyError: If it is not installed, or too old for what is imported.
    """
    try:
        yield
    except ImportError as error:
        raise DependencyError(
            f"Packed weights need the package compressed-tensors ({error}).",
            field="compressed-tensors",
            remedy="pip install 'compressed-tensors>=0.20'",
        ) from error


def read_scale(scale: torch.Tensor) -> torch.Tensor:
    """Return scales as float16 where they are stored so, else as float32 (which is exact)."""
    return (scale if scale.dtype == torch.float16 else scale.float()).contiguous()


def with_even_groups(coded: CodedWeight) -> CodedWeight:
    """Return the same weight with groups that divide its inputs.

    A last group that is not full (192 inputs in groups of 128) is cut into pieces that all groups
    can be cut into; pieces of one group share its scale, so not one value changes.

    Args:
        coded: With ``ceil(in_features / group_size)`` scales per output.
    """
    size, num_in = coded.format.group_size, coded.in_features
    if size is None or num_in % size == 0:
        return coded
    piece = math.gcd(size, num_in)
    group = torch.arange(num_in // piece) * piece // size
    fmt = coded.format
    return CodedWeight(
        WeightFormat(fmt.bits, piece, fmt.symmetric, fmt.number),
        coded.codes,
        coded.scale[:, group].contiguous(),
        None if coded.zero is None else coded.zero[:, group].contiguous(),
        coded.activation,
    )


def without_middle_zeros(coded: CodedWeight) -> CodedWeight:
    """Return a weight whose zero points are all the middle of the codes as a symmetric one."""
    fmt = coded.format
    if coded.zero is None or bool((coded.zero != fmt.middle).any()):
        return coded
    symmetric = WeightFormat(fmt.bits, fmt.group_size, True, fmt.number)
    return CodedWeight(
        symmetric, coded.codes, coded.scale, None, coded.activation, coded.group_index
    )


class Settings:
    """Values of a ``quantization_config``, of which none is passed over.

    Args:
        values: The JSON object.
        method: Its ``quant_method``, for messages.
    """

    def __init__(self, values: Mapping[str, Any], method: str) -> None:
        """Keep the values."""
        self.values, self._method = values, method

    def get(
        self,
        key: str,
        kind: type[int] | type[bool] | type[str],
        default: Any,
        allowed: Callable[[Any], bool] = lambda _: True,
    ) -> Any:
        """Return a value of a type, or the default where the key is missing or null.

        Raises:
            UnsupportedModelError: If the value is of another type or not allowed.
        """
        value = self.values.get(key)
        if value is None:
            return default
        if type(value) is not kind or not allowed(value):
            raise self.refuse(key)
        return value

    def check_keys(self, used: frozenset[str], harmless: frozenset[str]) -> None:
        """Refuse keys that are neither used nor known to leave the weights alone.

        Raises:
            UnsupportedModelError: Names the first unknown key.
        """
        for key in self.values:
            if key not in used and key not in harmless:
                raise UnsupportedModelError(
                    f"quantization_config ({self._method}) sets {key!r}, which is not known."
                    f"{nearest(key, used)}",
                    field=key,
                    value=self.values[key],
                    remedy=f"Known: {', '.join(sorted(used))}.",
                )

    def refuse(self, key: str, remedy: str | None = None) -> UnsupportedModelError:
        """Return the error for a value that is not supported."""
        value = self.values.get(key)
        return UnsupportedModelError(
            f"quantization_config ({self._method}) has {key}={value!r}, which is not supported.",
            field=key,
            value=value,
            remedy=remedy,
        )
