"""A draft head on disk: ``config.json``, ``head.safetensors`` and the record of its training."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from infopt.errors import CheckpointError, ModelNotFoundError, check_known_keys
from infopt.speculative.head.weights import HeadConfig, HeadWeights

FORMAT = "infopt-draft-head-1"
_CONFIG, _WEIGHTS, _RECORD = "config.json", "head.safetensors", "training.json"


@dataclass(frozen=True, slots=True)
class HeadFolder:
    """A draft head as it was read.

    Attributes:
        config: Sizes and model.
        weights: Tensors.
        record: How it was trained; empty where that is not known.
    """

    config: HeadConfig
    weights: HeadWeights
    record: Mapping[str, Any]


def write_head(
    folder: Path, config: HeadConfig, weights: HeadWeights, record: Mapping[str, Any]
) -> None:
    """Write a draft head; a head that is there is replaced.

    Raises:
        CheckpointError: The weights do not have the sizes of the config.
    """
    weights.check(config)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in weights.to_dict().items()}
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    _write_json(folder / _CONFIG, {"format": FORMAT, **dataclasses.asdict(config)})
    _write_json(folder / _RECORD, record)


def read_head(folder: Path) -> HeadFolder:
    """Read a draft head.

    Raises:
        ModelNotFoundError: There is none.
        CheckpointError: It is in another format, or incomplete.
    """
    if not (folder / _CONFIG).is_file() or not (folder / _WEIGHTS).is_file():
        raise ModelNotFoundError(
            f"{folder} holds no draft head.",
            field="speculative.model",
            value=str(folder),
            remedy="Train one: infopt train-draft MODEL --out FOLDER.",
        )
    values = json.loads((folder / _CONFIG).read_text("utf-8"))
    if values.pop("format", None) != FORMAT:
        raise CheckpointError(
            f"{folder} is not a draft head in the format {FORMAT}.",
            field="speculative.model",
            value=str(folder),
        )
    check_known_keys(values, [f.name for f in dataclasses.fields(HeadConfig)], "draft head")
    tensors, names = load_file(folder / _WEIGHTS), {f.name for f in dataclasses.fields(HeadWeights)}
    if set(tensors) != names:
        raise CheckpointError(
            f"{folder / _WEIGHTS} does not hold the tensors of a draft head.",
            field="speculative.model",
            value=sorted(set(tensors) ^ names),
        )
    config, weights = HeadConfig(**values), HeadWeights(**tensors)
    weights.check(config)
    record = folder / _RECORD
    return HeadFolder(
        config, weights, json.loads(record.read_text("utf-8")) if record.is_file() else {}
    )


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", "utf-8")
