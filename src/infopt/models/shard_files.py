"""The safetensors files of a folder: which tensors there are, and reading one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from infopt.errors import CheckpointError
from infopt.models.packed import StoredTensor

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class ShardFiles:
    """All tensors of a folder by the names they are stored under.

    Args:
        path: The folder.

    Attributes:
        shards: Name of a tensor -> name of the file that holds it.

    Raises:
        CheckpointError: Names a file that is missing or not complete.
    """

    def __init__(self, path: Path) -> None:
        """Read the index, or the header of the only file."""
        self.path = path
        self._files: dict[str, Any] = {}
        self.shards = self._find()

    def header(self, name: str) -> StoredTensor:
        """Return type and shape of a tensor; its data is not read."""
        view = self._open(self.shards[name]).get_slice(name)
        return StoredTensor(view.get_dtype(), tuple(view.get_shape()))

    def read(self, name: str) -> torch.Tensor:
        """Read a tensor as it is stored."""
        return self._open(self.shards[name]).get_tensor(name)

    def read_part(self, name: str, index: tuple[int, slice]) -> torch.Tensor:
        """Read a part of a tensor; the rest stays on the disk."""
        return self._open(self.shards[name]).get_slice(name)[index]

    def close(self) -> None:
        """Let go of the files."""
        self._files = {}

    def _find(self) -> dict[str, str]:
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


def _stale_index(what: str, value: str) -> CheckpointError:
    return CheckpointError(
        f"{INDEX_NAME} is stale: it {what}.",
        field=INDEX_NAME,
        value=value,
        remedy="Fetch the missing file, or save the checkpoint again so that the index is "
        "rewritten.",
    )
