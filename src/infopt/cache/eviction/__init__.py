"""KV eviction: presses score the rows of a layer, and the rows with the lowest scores are let go.

A press is one class with one method (``score``), filed under the name that ``kv_eviction`` calls it
by. Which rows stay is decided here; `infopt.cache.manager` moves them together and gives the pages
back, and `infopt.engine.eviction` says when.
"""

from infopt.cache.eviction.config import EvictionConfig, read_eviction
from infopt.cache.eviction.press import PRESSES, LayerRows, Press
from infopt.cache.eviction.select import select_rows
from infopt.cache.eviction.state import EvictionState

__all__ = [
    "PRESSES",
    "EvictionConfig",
    "EvictionState",
    "LayerRows",
    "Press",
    "read_eviction",
    "select_rows",
]
