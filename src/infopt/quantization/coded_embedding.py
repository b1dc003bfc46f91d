"""An embedding that stays packed: rows are unpacked when their tokens are looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors import safe_open

from infopt.errors import CheckpointError, WeightFormatError
from infopt.models.checkpoint import Checkpoint
from infopt.models.tensor_names import EMBEDDING, EMBEDDING_LAYER
from infopt.quantization.coded import CodedWeight, WeightFormat

if TYPE_CHECKING:
    from infopt.quantization.export import CheckpointWriter

FILE_NAME = "infopt_embedding.safetensors"
"""Codes of an embedding. The weights hold the same values as floats: transformers 5 loads no packed
embedding, and values have to be the same everywhere."""

WIDTHS = (4, 8)
"""Bits of a code that rows can be packed in."""


class CodedEmbedding:
    """Rows of integer codes, 4 bits packed two in a byte.

    A lookup gives the bits of `CodedWeight.dequantize`.

    Args:
        coded: ``(vocab_size, hidden_size)`` codes.
        device: Where the model runs.
        dtype: Compute type.
        stored: Type to which values are rounded first: that of the file that others read.

    Raises:
        WeightFormatError: For codes of another kind.
    """

    def __init__(
        self,
        coded: CodedWeight,
        device: torch.device,
        dtype: torch.dtype,
        stored: torch.dtype = torch.float32,
    ) -> None:
        """Pack the codes."""
        coded.check(EMBEDDING_LAYER)
        fmt = coded.format
        if fmt.number != "int" or fmt.bits not in WIDTHS or coded.group_index is not None:
            raise WeightFormatError(
                f"no embedding runs on {fmt.describe()} codes.",
                field=EMBEDDING_LAYER,
                value=fmt.describe(),
                remedy=f"Code it in {' or '.join(map(str, WIDTHS))} bits, groups in order.",
            )
        self._format, self._dtype, self._stored = fmt, dtype, stored
        self._codes = _pack(coded.codes, fmt.bits).to(device)
        self._scale = coded.scale.to(device)
        self._zero = None if coded.zero is None else coded.zero.to(device)
        self._group = fmt.group_size or coded.in_features
        self.num_bytes = coded.num_bytes

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return ``(num_tokens, hidden_size)`` in the compute type."""
        codes = _unpack(self._codes.index_select(0, token_ids), self._format.bits).float()
        codes = codes.unflatten(1, (-1, self._group))
        zero: float | torch.Tensor = float(self._format.middle)
        if self._zero is not None:
            zero = self._zero.index_select(0, token_ids).float().unsqueeze(-1)
        scale = self._scale.index_select(0, token_ids).float().unsqueeze(-1)
        return ((codes - zero) * scale).flatten(1).to(self._stored).to(self._dtype)


def store_embedding(writer: CheckpointWriter, coded: CodedWeight) -> None:
    """Write the codes beside the weights of a folder, which hold the values they stand for."""
    assert coded.zero is None
    tensors = {"codes": _pack(coded.codes, coded.format.bits), "scale": coded.scale}
    group = coded.format.group_size or coded.in_features
    metadata = {"bits": str(coded.format.bits), "group_size": str(group)}
    writer.add_file(FILE_NAME, tensors, metadata)


def stored_embedding(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> CodedEmbedding | None:
    """Return the embedding of a checkpoint that holds codes of it, else None.

    Raises:
        CheckpointError: The codes are not those of the checkpoint's embedding.
    """
    path = checkpoint.path / FILE_NAME
    if not path.exists():
        return None
    with safe_open(path, framework="pt") as file:
        found = file.metadata()
        packed, scale = file.get_tensor("codes"), file.get_tensor("scale")
    bits = int(found["bits"])
    fmt = WeightFormat(bits, int(found["group_size"]))
    coded = CodedWeight(fmt, _unpack(packed, bits), scale)
    stored = checkpoint.stored_dtype(EMBEDDING)
    if not torch.equal(coded.dequantize(stored), checkpoint.get(EMBEDDING, stored)):
        raise CheckpointError(
            f"{FILE_NAME} in {checkpoint.path.name} does not hold the codes of its embedding.",
            field=EMBEDDING,
            remedy="Remove the file to run the float embedding, or quantize again.",
        )
    return CodedEmbedding(coded, device, dtype, stored)


def _pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    if bits == 8:
        return codes.contiguous()
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def _unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    if bits == 8:
        return packed
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
