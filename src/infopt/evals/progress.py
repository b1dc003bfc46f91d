"""A progress bar that costs no import until it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def track(items: Sequence[T], description: str, show: bool) -> Iterable[T]:
    """Return ``items``, with a progress bar around them if ``show``."""
    if not show:
        return items
    from tqdm.auto import tqdm

    return tqdm(items, desc=description, leave=False)
