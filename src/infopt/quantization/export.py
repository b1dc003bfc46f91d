"""Writes a checkpoint folder with coded weights, one layer at a time.

    writer = CheckpointWriter(folder, checkpoint, scheme="int4-rtn-g64")
    for index in [*range(checkpoint.config.num_layers), None]:      # None: embedding, norm, head
        if not writer.has_layer(index):
            writer.add_layer(index, coded, tensors)
    writer.finish()

The folder is in Hugging Face's layout with a ``quantization_config`` in the format of
compressed-tensors, which transformers and vLLM load. Layers go to a folder beside it, one file
each, and are found again by a later run that writes the same; the folder itself appears when it is
complete.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from infopt.errors import ConfigError
from infopt.models.checkpoint import Checkpoint
from infopt.models.hf_export import export_config, export_generation_config
from infopt.models.shard_files import INDEX_NAME
from infopt.models.tensor_names import (
    EMBEDDING,
    HEAD_LAYER,
    expected_tensors,
    is_norm,
    linear_layers,
)
from infopt.models.tokenizer_export import write_tokenizer
from infopt.quantization.coded import CodedWeight
from infopt.quantization.compressed_layers import layer_tensors
from infopt.quantization.compressed_settings import layer_scheme, quantization_config

logger = logging.getLogger(__name__)

_JOB = "job.json"
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def folder_dtype(checkpoint: Checkpoint, dtype: torch.dtype | None = None) -> torch.dtype:
    """Return the type in which a folder stores scales: its own, or that of the checkpoint."""
    return dtype or checkpoint.stored_dtype(EMBEDDING)


class CheckpointWriter:
    """Writes one folder.

    Args:
        folder: Where to; it must not exist yet, or be empty.
        checkpoint: Where everything comes from that is not handed over.
        scheme: Plain data that names what is being made: a run that was interrupted goes on where
            the scheme, the checkpoint and the type are the same, and starts again where not.
        dtype: Type of weights that are not coded, and of scales; None keeps the type of each
            tensor of the checkpoint (float32 for a GGUF file).

    Attributes:
        dtype: Type of the folder; scales must be numbers of this type.

    Raises:
        ConfigError: If the folder holds something already.
    """

    def __init__(
        self,
        folder: Path,
        checkpoint: Checkpoint,
        *,
        scheme: Any,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Look for layers that an interrupted run has left."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                f"{folder} exists already.",
                field="out",
                value=str(folder),
                remedy="Name another folder, or remove this one first.",
            )
        self.folder, self._checkpoint, self._config = folder, checkpoint, checkpoint.config
        self.dtype = folder_dtype(checkpoint, dtype)
        self._asked_dtype = dtype
        self._work = folder.with_name(f".{folder.name}.partial")
        self._expected = expected_tensors(self._config)
        job = {"scheme": scheme, "source": checkpoint.identity, "dtype": str(dtype)}
        self._job: dict[str, Any] = json.loads(json.dumps(job))
        self._drop_other_work()

    def has_layer(self, index: int | None) -> bool:
        """Tell whether a layer is written; None: what is outside the layers."""
        return self._note(index).exists()

    def add_layer(
        self,
        index: int | None,
        coded: Mapping[str, CodedWeight],
        tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Write a layer.

        Args:
            index: Which one; None for embedding, final norm and head.
            coded: Codes by canonical name of the linear layer. Those of ``lm_head`` of a tied model
                make it an untied one.
            tensors: Tensors that differ from the checkpoint's, by canonical name, such as norms
                that scales were folded into; as `Checkpoint.get` gives them.

        Raises:
            ConfigError: For a name that is not in this layer, or layers that read the same input
                and are coded differently, which other servers multiply as one.
            WeightFormatError: If compressed-tensors has no form for a weight.
            CheckpointError: For tensors that do not belong together.
        """
        tensors = tensors or {}
        names = self._names(index)
        self._check_names(index, names, coded, tensors)
        schemes = {layer: layer_scheme(layer, weight) for layer, weight in coded.items()}
        _check_fused(schemes, names)
        stored: dict[str, torch.Tensor] = {}
        for layer, weight in coded.items():
            parts = layer_tensors(layer, weight, schemes[layer]["format"], self.dtype)
            stored |= {f"{layer}.{part}": tensor for part, tensor in parts.items()}
        for name in names:
            if name.removesuffix(".weight") not in coded:
                stored[name] = self._dense(name, tensors.get(name))
        if not self._work.exists():  # only now: what is refused before leaves nothing behind
            self._work.mkdir(parents=True)
            _write_json(self._work / _JOB, self._job)
        file = self._work / self._shard(index)
        save_file(stored, file.with_suffix(".tmp"), metadata={"format": "pt"})
        file.with_suffix(".tmp").replace(file)
        sizes = {name: tensor.nbytes for name, tensor in stored.items()}
        _write_json(self._note(index), {"schemes": schemes, "bytes": sizes})

    def add_file(
        self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
    ) -> None:
        """Write a file of tensors that other software does not look for (after the first layer)."""
        save_file(dict(tensors), self._work / name, metadata=dict(metadata))

    def finish(self) -> Path:
        """Write what is left and put the folder in its place.

        Returns:
            The folder.

        Raises:
            ConfigError: If a layer is missing, or none is coded.
        """
        notes = {index: self._read_note(index) for index in self._indices()}
        schemes: dict[str, Any] = {}
        for note in notes.values():
            schemes |= note["schemes"]
        if not schemes:
            raise ConfigError("No layer of this model is coded.", field="scheme")
        work = self._work
        _write_json(work / "config.json", self._config_json(schemes))
        _write_json(work / "generation_config.json", export_generation_config(self._checkpoint))
        write_tokenizer(self._checkpoint, work)
        _write_json(work / INDEX_NAME, self._index_json(notes))
        for index in notes:
            self._note(index).unlink()
        (work / _JOB).unlink()
        if self.folder.exists():
            self.folder.rmdir()
        return work.replace(self.folder)

    def _drop_other_work(self) -> None:
        if not self._work.exists():
            return
        note = self._work / _JOB
        if note.exists() and json.loads(note.read_text(encoding="utf-8")) == self._job:
            return
        logger.warning("%s holds layers of another run; they are made again", self._work)
        shutil.rmtree(self._work)

    def _indices(self) -> list[int | None]:
        return [*range(self._config.num_layers), None]

    def _names(self, index: int | None) -> list[str]:
        """Return the canonical names of the tensors of a layer."""
        if index is None:
            return [name for name in self._expected if not name.startswith("model.layers.")]
        return [name for name in self._expected if name.startswith(f"model.layers.{index}.")]

    def _check_names(
        self,
        index: int | None,
        names: list[str],
        coded: Mapping[str, CodedWeight],
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        layers = [layer for layer in linear_layers(self._config) if f"{layer}.weight" in names]
        if index is None and HEAD_LAYER not in layers:
            layers.append(HEAD_LAYER)
        where = "outside the layers" if index is None else f"in layer {index}"
        for kind, given, known in (("linear layer", coded, layers), ("tensor", tensors, names)):
            for name in given:
                if name not in known:
                    raise ConfigError(f"There is no {kind} {name!r} {where}.", field=name)
        shapes = {f"{layer}.weight": tuple(w.codes.shape) for layer, w in coded.items()}
        shapes |= {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for name, shape in shapes.items():
            expected = self._expected.get(name) or self._expected[EMBEDDING]
            if shape != expected:
                raise ConfigError(
                    f"{name} has shape {shape}, the model demands {expected}.",
                    field=name,
                    value=shape,
                )

    def _dense(self, name: str, replaced: torch.Tensor | None) -> torch.Tensor:
        """Return a tensor that is not coded as it is stored."""
        checkpoint = self._checkpoint
        dtype = self._asked_dtype or checkpoint.stored_dtype(name)
        is_kept = replaced is None or torch.equal(replaced.float(), checkpoint.get(name))
        stored = checkpoint.stored(name) if is_kept else None
        if stored is None:
            stored = checkpoint.get(name) if replaced is None else replaced.float()
            if self._config.family == "gemma3_text" and is_norm(name):
                stored = stored - 1.0  # this family stores w, and `get` gives 1 + w
        return stored.to(dtype).contiguous()

    def _shard(self, index: int | None) -> str:
        number = self._config.num_layers if index is None else index
        return f"model-{number + 1:05d}-of-{self._config.num_layers + 1:05d}.safetensors"

    def _note(self, index: int | None) -> Path:
        return self._work / f"{self._shard(index)}.json"

    def _read_note(self, index: int | None) -> dict[str, Any]:
        if not self.has_layer(index):
            name = "embedding, norm and head" if index is None else f"layer {index}"
            raise ConfigError(f"{name} of {self.folder} is not written yet.", field="layer")
        return json.loads(self._note(index).read_text(encoding="utf-8"))

    def _config_json(self, schemes: Mapping[str, Any]) -> dict[str, Any]:
        is_tied = self._config.tie_word_embeddings and HEAD_LAYER not in schemes
        layers = [*linear_layers(self._config)]
        if HEAD_LAYER not in layers:
            layers.append(HEAD_LAYER)
        config = export_config(self._checkpoint, self.dtype, tie_word_embeddings=is_tied)
        return config | {"quantization_config": quantization_config(schemes, layers)}

    def _index_json(self, notes: Mapping[int | None, Any]) -> dict[str, Any]:
        names = {
            name: self._shard(index) for index, note in notes.items() for name in note["bytes"]
        }
        total = sum(size for note in notes.values() for size in note["bytes"].values())
        return {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}


def _check_fused(schemes: Mapping[str, Any], names: list[str]) -> None:
    """Refuse layers of one input that differ: vLLM and others multiply them as one."""
    for name in names:
        layer = name.removesuffix(".weight")
        at, _, part = layer.rpartition(".")
        first = next((f"{at}.{parts[0]}" for parts in _FUSED if part in parts), layer)
        if schemes.get(layer) != schemes.get(first):
            raise ConfigError(
                f"{first} and {layer} read the same input and are coded differently.",
                field=layer,
                remedy="Code them alike: servers multiply them as one.",
            )


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file that is either whole or not there."""
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
