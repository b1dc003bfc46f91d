"""GGUF files as a `Checkpoint`.

Names are translated, the pair-interleaved row order that the format uses for Llama's q and k is
undone, and blocks are dequantized one tensor at a time. Gemma's norm weights need nothing: the
format already stores ``1 + w``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from infopt.errors import CheckpointError, UnsupportedModelError
from infopt.models import tensor_names
from infopt.models.checkpoint import Checkpoint
from infopt.models.config import ModelConfig
from infopt.models.gguf_config import gguf_config, gguf_family
from infopt.models.gguf_reader import GGUFReader, GGUFTensor

if TYPE_CHECKING:
    from infopt.models.tokenizer import Tokenizer

ROPE_FACTORS = "rope_freqs.weight"

_GLOBAL_NAMES = {
    "token_embd.weight": tensor_names.EMBEDDING,
    "output_norm.weight": tensor_names.FINAL_NORM,
    "output.weight": tensor_names.HEAD,
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SANDWICH_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PERMUTED = re.compile(r"\.self_attn\.(q|k)_proj\.(weight|bias)$")


class GGUFCheckpoint(Checkpoint):
    """One GGUF file.

    Args:
        path: The file.

    Raises:
        UnsupportedModelError: For an architecture, setting or block type that is not supported.
        CheckpointError: Names a tensor that is missing, misshapen or unknown.
    """

    format = "gguf"

    def __init__(self, path: Path) -> None:
        """Read the header and check it against the architecture's tensors."""
        self.path = path
        self._reader = GGUFReader(path)
        self._permuted = gguf_family(self._reader.metadata).permuted
        self.config = self._read_config()
        self._tensors = self._translate_names()
        found = {name: tensor.shape for name, tensor in self._tensors.items()}
        tensor_names.check_tensors(found, self.config, path.name)
        self._check_types()
        self._tokenizer: Tokenizer | None = None

    @property
    def metadata(self) -> dict:
        """The file's metadata: key -> value."""
        return self._reader.metadata

    def names(self) -> list[str]:
        """Return the canonical names of all tensors."""
        return list(self._tensors)

    def get(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Read and dequantize one tensor (see `Checkpoint.get`)."""
        tensor = self._find(name)
        values = torch.from_numpy(self._dequantize(tensor))
        rows = self.row_permutation(name)
        if rows is not None:
            values = values[torch.from_numpy(rows)]
        return values.to(dtype)

    def raw(self, name: str) -> tuple[str, np.ndarray, tuple[int, ...]]:
        """Return a tensor as the file's own blocks, for kernels that compute on them.

        Blocks run along the input dimension, so reordered rows are still whole rows of blocks:
        q and k are given in the same row order as `get` gives them.

        Args:
            name: Canonical name.

        Returns:
            The ggml type (``"Q4_1"``), the bytes (uint8, shape ``(rows, row_bytes)``; a read-only
            view of the file unless rows had to be reordered) and the logical shape.
        """
        tensor = self._find(name)
        blocks = self._reader.data(tensor.name)
        rows = self.row_permutation(name)
        if rows is not None:
            if len(tensor.shape) == 1:
                blocks = blocks.reshape(tensor.shape[0], -1)[rows].reshape(1, -1)
            else:
                blocks = blocks[rows]
        return tensor.type_name, blocks, tensor.shape

    def row_permutation(self, name: str) -> np.ndarray | None:
        """Return ``p`` such that canonical rows are ``file_rows[p]``, or None if they agree.

        The format stores each Llama head's rows as rotated pairs (0, d/2, 1, d/2 + 1, ...).
        """
        if not self._permuted or not _PERMUTED.search(name):
            return None
        rows = np.arange(self._find(name).shape[0])
        head_dim = self.config.head_dim
        return rows.reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that the metadata describe, built on the first call."""
        if self._tokenizer is None:
            from infopt.models.gguf_tokenizer import gguf_tokenizer

            self._tokenizer = gguf_tokenizer(self.metadata, self.config.num_real_tokens)
        return self._tokenizer

    def close(self) -> None:
        """Unmap the file (views that `raw` gave away keep it mapped)."""
        self._tensors = {}
        self._reader.close()

    def _read_config(self) -> ModelConfig:
        reader = self._reader
        if "token_embd.weight" not in reader.tensors:
            raise CheckpointError(
                f"{self.path.name} lacks the tensor 'token_embd.weight'.", field="token_embd.weight"
            )
        factors = None
        if ROPE_FACTORS in reader.tensors:
            factors = tuple(self._dequantize(reader.tensors[ROPE_FACTORS]).tolist())
        return gguf_config(
            reader.metadata,
            vocab_size=reader.tensors["token_embd.weight"].shape[0],
            tensor_names=frozenset(reader.tensors),
            rope_factors=factors,
        )

    def _translate_names(self) -> dict[str, GGUFTensor]:
        known = tensor_names.expected_tensors(self.config)
        tensors = {}
        for name, tensor in self._reader.tensors.items():
            if name == ROPE_FACTORS:
                continue
            canonical = canonical_name(name, sandwich_norms=self.config.sandwich_norms)
            if canonical not in known:
                raise tensor_names.unknown_tensor(name, self._reader.tensors, self.path.name)
            tensors[canonical] = tensor
        return tensors

    def _check_types(self) -> None:
        """Dequantize one row of every block type, so that none fails after half the model."""
        samples = {tensor.type_name: tensor for tensor in self._tensors.values()}
        for tensor in samples.values():
            self._dequantize_blocks(tensor, self._reader.data(tensor.name)[:1])

    def _find(self, name: str) -> GGUFTensor:
        if name not in self._tensors:
            raise CheckpointError(f"{self.path.name} has no tensor {name!r}.", field=name)
        return self._tensors[name]

    def _dequantize(self, tensor: GGUFTensor) -> np.ndarray:
        values = self._dequantize_blocks(tensor, self._reader.data(tensor.name))
        return values.reshape(tensor.shape)

    def _dequantize_blocks(self, tensor: GGUFTensor, blocks: np.ndarray) -> np.ndarray:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        kind = GGMLQuantizationType[tensor.type_name]
        if tensor.type_name in ("F32", "F16"):
            values = blocks.view(np.dtype("<f4" if tensor.type_name == "F32" else "<f2"))
        else:
            try:
                values = dequantize(blocks, kind)
            except NotImplementedError as error:
                raise UnsupportedModelError(
                    f"Tensor {tensor.name!r} has block type {tensor.type_name}, which cannot be "
                    "dequantized.",
                    field=tensor.name,
                    value=tensor.type_name,
                ) from error
        return values.astype(np.float32, copy=not values.flags.writeable)


def canonical_name(name: str, *, sandwich_norms: bool) -> str | None:
    """Translate a GGUF tensor name, or return None if it has no canonical one.

    Args:
        name: Name in the file.
        sandwich_norms: Whether the family has norms after attention and MLP: then ``ffn_norm`` is
            the norm before the MLP.
    """
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    match = _LAYER.fullmatch(name)
    if match is None:
        return None
    index, part, kind = match.groups()
    names = _LAYER_NAMES | _SANDWICH_NAMES if sandwich_norms else _LAYER_NAMES
    return f"model.layers.{index}.{names[part]}.{kind}" if part in names else None
