"""Progress bars where tqdm is installed; without it work goes on in silence."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def bar(items: Sequence[int], verb: str, unit: str) -> Any:
    """Show progress over items where tqdm is installed and it takes long enough to matter."""
    tqdm = _tqdm()
    return items if tqdm is None else tqdm(items, desc=verb, unit=unit, delay=1.0, leave=False)


@contextmanager
def counter(total: int, verb: str, enabled: bool) -> Iterator[Any]:
    """Give a function that counts finished requests."""
    tqdm = _tqdm()
    if not enabled or tqdm is None:
        yield lambda _count: None
        return
    with tqdm(total=total, desc=verb, unit="request", delay=1.0, leave=False) as shown:
        yield shown.update


def _tqdm() -> Any:
    """Return the progress bar that suits terminal or notebook; None without tqdm."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without ipywidgets it says so and shows a text bar
            from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm
