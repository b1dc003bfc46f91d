"""YAML files that one job of the pipeline writes and another reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infopt.results import write_text_atomic


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a file that `write_yaml` wrote."""
    import yaml

    return yaml.safe_load(Path(path).read_text("utf-8"))


def write_yaml(document: Mapping[str, Any], path: str | Path) -> None:
    """Write plain data as YAML, atomically."""
    import yaml

    write_text_atomic(path, yaml.safe_dump(dict(document), sort_keys=False, width=100))
