"""Access to bitsandbytes: imported on first use, without a word and without the network."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from infopt.errors import CheckpointError, DependencyError


def library() -> Any:
    """Return the module ``bitsandbytes``.

    Raises:
        DependencyError: If it is not installed, or does not load.
    """
    loaded = sys.modules.get("bitsandbytes")
    if loaded is not None:
        return loaded
    try:
        with _offline():
            import bitsandbytes
    except (ImportError, OSError) as error:
        raise DependencyError(
            f"The schemes nf4 and llm.int8 are computed by bitsandbytes, which does not load: "
            f"{error}.",
            field="quantization",
            value="bitsandbytes",
            remedy="Install it: pip install bitsandbytes",
        ) from error
    return bitsandbytes


def functional() -> Any:
    """Return ``bitsandbytes.functional``.

    Raises:
        DependencyError: If bitsandbytes is not installed, or does not load.
    """
    return library().functional


def stored(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """Return a tensor of a stored weight.

    Raises:
        CheckpointError: If it is missing.
    """
    if name not in tensors:
        raise CheckpointError(
            f"A stored weight lacks {name!r}; it holds {', '.join(sorted(tensors)) or 'nothing'}.",
            field=name,
            remedy="Store all that tensors() returns.",
        )
    return tensors[name]


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Hide the hub of kernels, and the warning that it is missing.

    Where the package ``kernels`` is installed, bitsandbytes would fetch machine code from the hub
    during its import. Its own kernels do the same work.
    """
    log = logging.getLogger("bitsandbytes")
    level, hub = log.level, sys.modules.get("kernels")
    sys.modules["kernels"] = None  # type: ignore[assignment]  # Python's way to refuse an import
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        del sys.modules["kernels"]
        if hub is not None:
            sys.modules["kernels"] = hub
