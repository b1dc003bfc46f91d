"""A cheap, stable identity of a checkpoint's content.

It reads a megabyte from each end of a file and small samples in between, whatever the size, so a
model of 100 GB is identified in milliseconds. It tells models apart; it is no proof against
tampering, which the registered sha256 of a fetched file is.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_END_BYTES = 1 << 20
_SAMPLE_BYTES = 4096
_NUM_SAMPLES = 256


def content_identity(path: Path) -> str:
    """Return the identity of a GGUF file, or of a folder's weights and configuration.

    Renaming or copying the file or folder does not change it.
    """
    digest = hashlib.sha256()
    if path.is_file():
        _sample(path, digest)
    else:
        for file in sorted(f for f in path.iterdir() if _counts(f)):
            digest.update(file.name.encode() + b"\0")
            _sample(file, digest)
    return f"sampled-sha256:{digest.hexdigest()}"


def _counts(file: Path) -> bool:
    return file.suffix == ".safetensors" or file.name == "config.json"


def _sample(path: Path, digest: hashlib._Hash) -> None:
    size = path.stat().st_size
    digest.update(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        digest.update(file.read(_END_BYTES))
        for index in range(1, _NUM_SAMPLES):
            offset = size * index // _NUM_SAMPLES
            if _END_BYTES <= offset < size - _END_BYTES:
                file.seek(offset)
                digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(_END_BYTES, size - _END_BYTES))
        digest.update(file.read())
