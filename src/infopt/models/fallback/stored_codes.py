"""Float weights of checkpoints that are published as codes: fp8 blocks and mxfp4.

    fp8     weight (e4m3) * weight_scale_inv of its block; blocks at the edges may be partial
    mxfp4   32 numbers share a power of two: e2m1 * 2 ** (scale - 127); two a byte, low half first

The numbers are decoded once, when the model is loaded, and lose nothing but their size: a model
takes the memory of its float weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from infopt.errors import CheckpointError, WeightFormatError
from infopt.models.shard_files import ShardFiles

METHODS = ("fp8", "mxfp4")

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_FP8_SCALE = "_scale_inv"
_MXFP4 = ("_blocks", "_scales")


def decode_folder(
    folder: Path, settings: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Read all tensors of a checkpoint, codes as the numbers they stand for.

    Args:
        folder: The checkpoint.
        settings: Its ``quantization_config``.
        dtype: Type of decoded weights; all others keep theirs.

    Raises:
        WeightFormatError: For codes of another kind.
        CheckpointError: If a scale is missing or does not fit.
    """
    method = settings.get("quant_method")
    if method not in METHODS:
        raise WeightFormatError(
            f"{folder.name} stores {method} codes, which transformers' modules are not given here.",
            field="quantization_config",
            value=method,
            remedy=f"Decoded when loaded: {', '.join(METHODS)}. Convert others to float first.",
        )
    files = ShardFiles(folder)
    try:
        if method == "fp8":
            return _decode_fp8(files, settings, dtype)
        return _decode_mxfp4(files, dtype)
    finally:
        files.close()


def _decode_fp8(
    files: ShardFiles, settings: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    block = tuple(settings.get("weight_block_size") or ())
    tensors = {}
    for name in files.shards:
        if name.endswith(_FP8_SCALE):
            continue
        values = files.read(name)
        if values.element_size() == 1:
            scale = f"{name}{_FP8_SCALE}"
            if scale not in files.shards:
                raise CheckpointError(f"{name!r} is coded and {scale!r} is missing.", field=scale)
            values = fp8_weight(values, files.read(scale), block, name).to(dtype)
        tensors[name] = values
    return tensors


def fp8_weight(
    codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, ...], name: str = "weight"
) -> torch.Tensor:
    """Return the float32 weight of fp8 codes.

    Args:
        codes: e4m3, ``(out_features, in_features)``.
        scales: One per block, or one in all.
        block: Rows and columns of a block.
        name: Of the tensor, for the message.

    Raises:
        CheckpointError: If there are not as many scales as blocks.
    """
    factors = scales.float()
    if factors.numel() == 1:
        return codes.float() * factors.reshape(())
    rows, columns = codes.shape
    expected = tuple(-(-size // step) for size, step in zip((rows, columns), block, strict=False))
    if tuple(factors.shape) != expected or len(block) != 2:
        raise CheckpointError(
            f"{name!r} of shape {(rows, columns)} has scales of shape {tuple(factors.shape)}, "
            f"blocks of {block} make {expected}.",
            field=name,
            value=tuple(factors.shape),
        )
    grid = factors.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return codes.float() * grid[:rows, :columns]


def _decode_mxfp4(files: ShardFiles, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    tensors = {}
    for name in files.shards:
        if name.endswith(_MXFP4[1]):
            continue
        values, layer = files.read(name), name.removesuffix(_MXFP4[0])
        if layer != name:
            scale = f"{layer}{_MXFP4[1]}"
            if scale not in files.shards:
                raise CheckpointError(f"{name!r} is coded and {scale!r} is missing.", field=scale)
            # Files hold experts as (out, in), the modules as (in, out).
            values = mxfp4_weight(values, files.read(scale)).transpose(1, 2).to(dtype).contiguous()
        tensors[layer] = values
    return tensors


def mxfp4_weight(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the float32 numbers of mxfp4 codes.

    Args:
        codes: uint8 ``(..., groups, 16)``.
        scales: uint8 ``(..., groups)``.

    Returns:
        Shape ``(..., groups * 32)``.

    Raises:
        CheckpointError: If there are not as many scales as groups.
    """
    if codes.shape[:-1] != scales.shape:
        raise CheckpointError(
            f"mxfp4 codes of shape {tuple(codes.shape)} have scales of shape "
            f"{tuple(scales.shape)}.",
            field="scales",
            value=tuple(scales.shape),
        )
    table = torch.tensor(_E2M1)
    pairs = torch.stack([table[(codes & 15).long()], table[(codes >> 4).long()]], dim=-1)
    powers = torch.ldexp(torch.ones(scales.shape), scales.int() - 127)
    return (pairs.flatten(-2) * powers[..., None]).flatten(-2)
