"""Files that are complete or absent: a killed job never leaves half of one at its final name."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from infopt.errors import ResultError


def write_text_atomic(path: str | Path, text: str) -> Path:
    """Write a text file by way of a temporary file in the same folder, fsync and rename.

    Args:
        path: Final name; missing folders are made.
        text: The whole content.
    """
    return write_bytes_atomic(path, text.encode("utf-8"))


def write_bytes_atomic(path: str | Path, content: bytes) -> Path:
    """Write a file by way of a temporary file in the same folder, fsync and rename."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not *.json, so that whoever lists the folder never takes it for a record.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return path


def write_json(path: str | Path, document: Any) -> Path:
    """Write plain data as strict JSON (no NaN, no infinity), atomically."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return write_text_atomic(path, text + "\n")


def read_json(path: str | Path) -> Any:
    """Read strict JSON.

    Raises:
        ResultError: Names the file: it is absent, cut off, not UTF-8, repeats a key, or holds NaN.
    """
    try:
        text = Path(path).read_text("utf-8")
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except FileNotFoundError:
        raise ResultError(f"{path} does not exist.", field=str(path), value=str(path)) from None
    except (OSError, ValueError) as error:  # JSON and Unicode errors are ValueErrors
        raise ResultError(
            f"{path} cannot be read as JSON: {error}.",
            field=str(path),
            value=str(path),
            remedy="Delete the file and run the step again.",
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        keys = [k for k, _ in pairs]
        twice = next(k for k in keys if keys.count(k) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return document


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def _sync_folder(folder: Path) -> None:
    """Make the rename durable, where the system can sync folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
