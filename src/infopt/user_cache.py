"""Where infopt keeps what can be made again: models, compiled kernels, converted weights."""

from __future__ import annotations

import os
from pathlib import Path

from infopt.errors import ConfigError

CACHE_VARIABLE = "INFOPT_CACHE_DIR"


def cache_dir() -> Path:
    """Return the folder: ``INFOPT_CACHE_DIR``, or infopt's part of the user's cache folder.

    Raises:
        ConfigError: The user has no home folder.
    """
    try:
        return Path(os.environ.get(CACHE_VARIABLE) or _default()).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"This user has no home folder for infopt's cache: {error}.",
            field=CACHE_VARIABLE,
            value=os.environ.get(CACHE_VARIABLE),
            remedy=f"Set {CACHE_VARIABLE} to a folder that can be written.",
        ) from error


def _default() -> str | Path:
    try:
        from platformdirs import user_cache_dir
    except ImportError:  # kernels and models must do with torch and its companions
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "infopt")
    return user_cache_dir("infopt")
