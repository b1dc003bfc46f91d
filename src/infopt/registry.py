"""A small name -> object registry whose errors list the valid names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from infopt.errors import ConfigError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps names to creators or classes; an unknown name is an error that lists the known ones.

    Args:
        kind: What is registered, for messages ("workload", "KV press", ...).
    """

    def __init__(self, kind: str) -> None:
        """Start empty."""
        self.kind = kind
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that files its argument under ``name`` (names are unique)."""

        def decorator(item: T) -> T:
            if name in self._items:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._items[name] = item
            return item

        return decorator

    def get(self, name: str) -> T:
        """Return the item called ``name``.

        Raises:
            ConfigError: If there is none; the message holds the nearest name and all valid ones.
        """
        if not isinstance(name, str) or name not in self._items:
            raise ConfigError(
                f"Unknown {self.kind} {name!r}.{nearest(name, self._items)}",
                field=self.kind,
                value=name,
                remedy=f"Valid names: {', '.join(sorted(self._items)) or '(none)'}.",
            )
        return self._items[name]

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        return sorted(self._items)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the sorted names."""
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        """Tell whether a name is registered."""
        return name in self._items
