"""Folders with ``config.json`` and safetensors as a `Checkpoint`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infopt.errors import CheckpointError
from infopt.models import tensor_names
from infopt.models.checkpoint import Checkpoint
from infopt.models.config import ModelConfig
from infopt.models.hf_config import hf_config, read_json, text_config

if TYPE_CHECKING:
    from infopt.models.tokenizer import Tokenizer

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

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
        self._files: dict[str, Any] = {}
        self._tokenizer: Tokenizer | None = None
        self.config = self._read_config()
        self._expected = tensor_names.expected_tensors(self.config)
        self._shards = self._find_shards()
        tensor_names.check_tensors(self._shapes(), self.config, path.name)
        self._check_tied_head()

    def names(self) -> list[str]:
        """Return the canonical names of all tensors."""
        return list(self._expected)

    def get(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Read one tensor (see `Checkpoint.get`)."""
        if name not in self._expected:
            raise CheckpointError(f"{self.path.name} has no tensor {name!r}.", field=name)
        values = self._read(name)
        if self.config.family == "gemma3_text" and tensor_names.is_norm(name):
            values = values.float() + 1.0
        return values.to(dtype)

    def stored_dtype(self, name: str) -> torch.dtype:
        """Return the type in which a tensor is stored."""
        shard, stored = self._shards[name]
        return _DTYPES[self._open(shard).get_slice(stored).get_dtype()]

    def tokenizer(self) -> Tokenizer:
        """Return the folder's tokenizer, built on the first call."""
        if self._tokenizer is None:
            from infopt.models.tokenizer import folder_tokenizer

            self._tokenizer = folder_tokenizer(self.path)
        return self._tokenizer

    def close(self) -> None:
        """Let go of the shards."""
        self._files = {}

    def _read_config(self) -> ModelConfig:
        from infopt.models.tokenizer import has_tokenizer

        raw = read_json(self.path / "config.json")
        text_config(raw)  # an unsupported architecture is reported before anything else is read
        generation = self.path / "generation_config.json"
        return hf_config(
            raw,
            num_real_tokens=self.tokenizer().vocab_size if has_tokenizer(self.path) else None,
            generation=read_json(generation) if generation.exists() else None,
        )

    def _find_shards(self) -> dict[str, tuple[str, str]]:
        """Return canonical name -> (shard file, name in the shard)."""
        shards: dict[str, tuple[str, str]] = {}
        for stored, shard in self._stored_tensors().items():
            if _BUFFERS.search(stored) or _VISION.match(stored):
                continue
            name = _canonical_name(stored)
            tied_head = name == tensor_names.HEAD and self.config.tie_word_embeddings
            if name not in self._expected and not tied_head:
                raise tensor_names.unknown_tensor(stored, self._expected, shard)
            self._check_dtype(stored, shard)
            shards[name] = (shard, stored)
        return shards

    def _stored_tensors(self) -> dict[str, str]:
        if (self.path / INDEX_NAME).exists():
            return self._read_index()
        files = sorted(f.name for f in self.path.glob("*.safetensors"))
        if len(files) > 1 and SINGLE_NAME not in files:
            raise CheckpointError(
                f"{self.path} holds {len(files)} safetensors files and no {INDEX_NAME}, so it is "
                "not known which file each tensor comes from.",
                field=INDEX_NAME,
                value=files,
            )
        file = SINGLE_NAME if SINGLE_NAME in files else files[0]
        return dict.fromkeys(self._open(file).keys(), file)

    def _read_index(self) -> dict[str, str]:
        # The index decides: a shard may hold further tensors, even of the same name (left over
        # from an earlier save), and those must not win.
        try:
            index = json.loads((self.path / INDEX_NAME).read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.path / INDEX_NAME} has no weight_map.", field=INDEX_NAME
            ) from error
        for shard in sorted(set(index.values())):
            if Path(shard).name != shard or not (self.path / shard).is_file():
                raise _stale_index(f"names the file {shard!r}, which is not there", shard)
            stored = set(self._open(shard).keys())
            for name, file in index.items():
                if file == shard and name not in stored:
                    raise _stale_index(f"says that {name!r} is in {shard!r}, but it is not", name)
        return index

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            name: tuple(self._open(shard).get_slice(stored).get_shape())
            for name, (shard, stored) in self._shards.items()
        }

    def _check_dtype(self, stored: str, shard: str) -> None:
        dtype = self._open(shard).get_slice(stored).get_dtype()
        if dtype not in _DTYPES:
            raise CheckpointError(
                f"{stored!r} in {shard} is stored as {dtype}.",
                field=stored,
                value=dtype,
                remedy=f"Supported types: {', '.join(_DTYPES)}.",
            )

    def _check_tied_head(self) -> None:
        if not self.config.tie_word_embeddings or tensor_names.HEAD not in self._shards:
            return
        if not torch.equal(self._read(tensor_names.HEAD), self._read(tensor_names.EMBEDDING)):
            raise CheckpointError(
                f"{self.path.name} stores an lm_head.weight that differs from the embedding, and "
                "config.json says that they are tied.",
                field="tie_word_embeddings",
                value=True,
                remedy="Set tie_word_embeddings to false if the stored head is meant.",
            )

    def _read(self, name: str) -> torch.Tensor:
        shard, stored = self._shards[name]
        return self._open(shard).get_tensor(stored)

    def _open(self, shard: str) -> Any:
        if shard not in self._files:
            from safetensors import SafetensorError, safe_open

            try:
                self._files[shard] = safe_open(self.path / shard, framework="pt")
            except SafetensorError as error:
                raise CheckpointError(
                    f"{self.path / shard} is not a complete safetensors file ({error}).",
                    field=shard,
                    remedy="Fetch it again.",
                ) from error
        return self._files[shard]


def _canonical_name(stored: str) -> str:
    for prefix, replacement in _TEXT_PREFIXES:
        if stored.startswith(prefix):
            return replacement + stored.removeprefix(prefix)
    return stored


def _stale_index(what: str, value: str) -> CheckpointError:
    return CheckpointError(
        f"{INDEX_NAME} is stale: it {what}.",
        field=INDEX_NAME,
        value=value,
        remedy="Fetch the missing file, or save the checkpoint again so that the index is "
        "rewritten.",
    )
