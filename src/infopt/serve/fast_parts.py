"""The HTTP parser and the event loop: the fast ones, or Python's own and a word about it.

They are named to uvicorn instead of left to its choice, so that what serves does not depend on what
else happens to be installed.
"""

from __future__ import annotations

import logging
from typing import Literal

logger = logging.getLogger(__name__)

_SLOWER = "%s cannot be imported (%s): serving takes more CPU time per token"


def choose_parser() -> Literal["httptools", "h11"]:
    """Return the HTTP parser; a slower one is announced."""
    try:
        import httptools  # noqa: F401
    except ImportError as error:
        logger.warning(_SLOWER, "httptools", error)
        return "h11"
    return "httptools"


def choose_loop() -> Literal["uvloop", "asyncio"]:
    """Return the event loop; a slower one is announced."""
    try:
        import uvloop  # noqa: F401
    except ImportError as error:
        logger.warning(_SLOWER, "uvloop", error)
        return "asyncio"
    return "uvloop"
