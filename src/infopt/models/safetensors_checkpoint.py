"""Folders with ``config.json`` and safetensors as a `Checkpoint`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from infopt.errors import CheckpointError
from infopt.models import tensor_names
from infopt.models.checkpoint import Checkpoint
from infopt.models.config import ModelConfig
from infopt.models.expert_files import ExpertSlice, canonical_expert_name, expert_slices
from infopt.models.hf_config import hf_config, quantization_settings, read_json, text_config
from infopt.models.packed import CodedTensor, PackedReader, packed_reader
from infopt.models.shard_files import INDEX_NAME, SINGLE_NAME, ShardFiles

if TYPE_CHECKING:
    from infopt.models.tokenizer import Tokenizer

__all__ = ["INDEX_NAME", "SINGLE_NAME", "SafetensorsCheckpoint"]

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# Buffers that older versions of transformers saved; they follow from the configuration.
_BUFFERS = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$")

# Gemma 3 comes with a vision tower, of which the text decoder has no use.
_VISION = re.compile(r"^(model\.)?(vision_tower|multi_modal_projector)\.")
_TEXT_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)


class SafetensorsCheckpoint(Checkpoint):
    """One checkpoint folder.

    Args:
        path: The folder.

    Raises:
        UnsupportedModelError: For an architecture or setting that is not supported.
        CheckpointError: Names a tensor or file that is missing, misshapen or unknown.
    """

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        """Read configuration and headers and compare them."""
        self.path = path
        self._tokenizer: Tokenizer | None = None
        raw = read_json(path / "config.json")
        text_config(raw)  # an unsupported architecture is reported before anything else is read
        settings = quantization_settings(raw)
        self._reader: PackedReader | None = None if settings is None else packed_reader(settings)
        self.config = self._read_config(raw)
        self._expected = tensor_names.expected_tensors(self.config)
        self._linears = dict.fromkeys(tensor_names.linear_layers(self.config))
        self._files = ShardFiles(path)
        self._dense: dict[str, str] = {}
        self._fused: dict[str, ExpertSlice] = {}
        self._coded: dict[str, dict[str, str]] = {}
        self._sort_tensors()
        tensor_names.check_tensors(self._shapes(), self.config, path.name)
        self._check_tied_head()

    def names(self) -> list[str]:
        """Return the canonical names of all tensors."""
        return list(self._expected)

    def get(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Read one tensor (see `Checkpoint.get`)."""
        coded = self.coded(name.removesuffix(".weight"))
        if coded is not None:
            return coded.dequantize(dtype)
        values = self._read(name)
        if self.config.family == "gemma3_text" and tensor_names.is_norm(name):
            values = values.float() + 1.0
        return values.to(dtype)

    @property
    def coded_layers(self) -> list[str]:
        """Names of the linear layers whose weights are codes."""
        return list(self._coded)

    def coded(self, layer: str) -> CodedTensor | None:
        """Return the codes of a linear layer, or None where it is not coded."""
        parts = self._coded.get(layer)
        if parts is None or self._reader is None:
            return None
        tensors = {part: self._files.read(stored) for part, stored in parts.items()}
        return self._reader.read(_layer_of(parts), self._shape(layer), tensors)

    def stored(self, name: str) -> torch.Tensor | None:
        """Read a tensor as it is stored, nothing folded in; None where it is coded."""
        return None if name.removesuffix(".weight") in self._coded else self._read(name)

    def stored_dtype(self, name: str) -> torch.dtype:
        """Return the type of a tensor; of a coded layer, the type of the embedding."""
        is_coded = name.removesuffix(".weight") in self._coded
        stored = self._stored_name(tensor_names.EMBEDDING if is_coded else name)
        return _DTYPES[self._files.header(stored).dtype]

    def tokenizer(self) -> Tokenizer:
        """Return the folder's tokenizer, built on the first call."""
        if self._tokenizer is None:
            from infopt.models.tokenizer import folder_tokenizer

            self._tokenizer = folder_tokenizer(self.path)
        return self._tokenizer

    def close(self) -> None:
        """Let go of the shards."""
        self._files.close()

    def _stored_name(self, name: str) -> str:
        return self._fused[name].stored if name in self._fused else self._dense[name]

    def _read(self, name: str) -> torch.Tensor:
        if name in self._fused:
            part = self._fused[name]
            return self._files.read_part(part.stored, part.index).contiguous()
        if name not in self._dense or name not in self._expected:
            raise CheckpointError(f"{self.path.name} has no tensor {name!r}.", field=name)
        return self._files.read(self._dense[name])

    def _read_config(self, raw: dict) -> ModelConfig:
        from infopt.models.tokenizer import has_tokenizer

        generation = self.path / "generation_config.json"
        return hf_config(
            raw,
            num_real_tokens=self.tokenizer().vocab_size if has_tokenizer(self.path) else None,
            generation=read_json(generation) if generation.exists() else None,
        )

    def _sort_tensors(self) -> None:
        """Find out which tensors are dense and which belong to coded layers."""
        parts: dict[str, dict[str, str]] = {}
        for stored in self._files.shards:
            if _BUFFERS.search(stored) or _VISION.match(stored):
                continue
            name = _canonical_name(stored)
            layer, _, part = name.rpartition(".")
            experts = self._experts_in(stored, name)
            if self._is_dense(name):
                self._dense[name] = stored
            elif experts is not None:
                self._fused.update(experts)
                self._check_dtype(stored)
            elif self._reader and layer in self._linears and part in self._reader.parts:
                parts.setdefault(layer, {})[part] = stored
            elif not self._is_empty_bias(layer, part, stored):
                shard = self._files.shards[stored]
                raise tensor_names.unknown_tensor(stored, self._expected, shard)
        self._sort_layers(parts)
        for stored in self._dense.values():
            self._check_dtype(stored)

    def _experts_in(self, stored: str, name: str) -> dict[str, ExpertSlice] | None:
        """Return which weights of experts a tensor holds; None for all other tensors."""
        if self.config.moe is None or name in self._expected:
            return None
        return expert_slices(stored, name, self._files.header(stored).shape, self.config)

    def _sort_layers(self, parts: dict[str, dict[str, str]]) -> None:
        if self._reader is None:
            return
        for layer in self._linears:
            stored = dict(parts.get(layer, {}))
            weight = f"{layer}.weight"
            if weight in self._dense:
                stored["weight"] = self._dense[weight]
            if not stored:
                continue  # reported as missing, with everything else that is
            found = {part: self._files.header(name) for part, name in stored.items()}
            if self._reader.is_coded(_layer_of(stored), self._shape(layer), found):
                self._coded[layer] = stored
                self._dense.pop(weight, None)

    def _is_dense(self, name: str) -> bool:
        tied_head = name == tensor_names.HEAD and self.config.tie_word_embeddings
        return name in self._expected or tied_head

    def _is_empty_bias(self, layer: str, part: str, stored: str) -> bool:
        """Some quantizers store a bias of zeros for each layer of a model that has none."""
        if self._reader is None or part != "bias" or layer not in self._linears:
            return False
        return not bool(self._files.read(stored).any())

    def _shape(self, layer: str) -> tuple[int, int]:
        num_out, num_in = self._expected[f"{layer}.weight"]
        return num_out, num_in

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = {name: self._files.header(stored).shape for name, stored in self._dense.items()}
        coded = {f"{layer}.weight": self._shape(layer) for layer in self._coded}
        fused = {name: self._expected[name] for name in self._fused}  # compared when sorted
        return shapes | coded | fused

    def _check_dtype(self, stored: str) -> None:
        dtype = self._files.header(stored).dtype
        if dtype not in _DTYPES:
            raise CheckpointError(
                f"{stored!r} in {self._files.shards[stored]} is stored as {dtype}.",
                field=stored,
                value=dtype,
                remedy=f"Supported types: {', '.join(_DTYPES)}.",
            )

    def _check_tied_head(self) -> None:
        head = self._dense.get(tensor_names.HEAD)
        if not self.config.tie_word_embeddings or head is None:
            return
        if not torch.equal(self._files.read(head), self._read(tensor_names.EMBEDDING)):
            raise CheckpointError(
                f"{self.path.name} stores an lm_head.weight that differs from the embedding, and "
                "config.json says that they are tied.",
                field="tie_word_embeddings",
                value=True,
                remedy="Set tie_word_embeddings to false if the stored head is meant.",
            )


def _layer_of(parts: dict[str, str]) -> str:
    """Return the name of a layer in the file from the names of its tensors."""
    return next(iter(parts.values())).rpartition(".")[0]


def _canonical_name(stored: str) -> str:
    for prefix, replacement in _TEXT_PREFIXES:
        if stored.startswith(prefix):
            return replacement + stored.removeprefix(prefix)
    return canonical_expert_name(stored)
