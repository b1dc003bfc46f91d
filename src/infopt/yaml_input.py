"""YAML that a person wrote: one reader for all of it, so that every mistake is a named error."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infopt.errors import ConfigError, InfoptError

if TYPE_CHECKING:
    import yaml


def read_yaml(
    path: str | Path,
    *,
    field: str,
    error: type[InfoptError] = ConfigError,
    remedy: str | None = None,
) -> Any:
    """Read a YAML file; nothing in it is run.

    Args:
        path: The file.
        field: Option that names it, for the error.
        error: Class to raise.
        remedy: What to do about it.

    Returns:
        Plain data; None for an empty file.

    Raises:
        InfoptError: Of the given class: there is no such file, it is no text or no YAML, or a
            mapping has a key twice, of which YAML would silently take the last.
    """
    import yaml

    try:
        return yaml.load(Path(path).read_text("utf-8"), Loader=_loader())
    except (OSError, ValueError, yaml.YAMLError) as cause:
        raise error(
            f"{path} cannot be read as YAML: {cause}.", field=field, value=str(path), remedy=remedy
        ) from cause


@functools.cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class UniqueKeys(yaml.SafeLoader):
        """The safe loader, which refuses a key that is there twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            problem=f"the key {key.value!r} is there twice",
                            problem_mark=key.start_mark,
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    return UniqueKeys
