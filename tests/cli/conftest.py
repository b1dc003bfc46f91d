"""Running the command line inside the test process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infopt.cli import app


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run ``infopt ARGS`` and return the result; ``ok=False`` expects a user's error (exit 2)."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")

    def run(*args: str, ok: bool = True, stdin: str | None = None) -> Any:
        result = CliRunner().invoke(app, list(args), input=stdin, color=False)
        if ok:
            assert result.exit_code == 0, result.output + repr(result.exception)
        else:
            assert result.exit_code == 2, result.output + repr(result.exception)
            assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def tiny(tiny_model_dir: Callable[..., Path]) -> list[str]:
    """Options that run a small random model in float32."""
    return ["--model", str(tiny_model_dir("llama")), "--dtype", "float32"]
