"""The command line: ``infopt generate | models | bench | doctor | recommend``.

Modules here import typer, rich and the plain-data modules only; everything heavy is imported inside
the commands, so that ``infopt --help`` answers at once.
"""

from __future__ import annotations

from infopt.cli.main import app

__all__ = ["app"]
