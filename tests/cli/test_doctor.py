"""`infopt doctor`: facts, what is missing, and how to get it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt import doctor
from infopt.ops import invariance


def checks(sections: list[doctor.Section], title: str) -> dict[str, doctor.Check]:
    (section,) = [s for s in sections if s.title == title]
    return {check.name: check for check in section.checks}


def test_json_has_every_section(run_cli: Any) -> None:
    report = json.loads(run_cli("doctor", "--json", "--no-self-test").stdout)
    titles = [
        "System",
        "GPU",
        "Backends",
        "Energy",
        "Compilers",
        "Optional packages",
        "Files",
        "Models",
    ]
    assert list(report) == titles
    for section in report.values():
        for check in section:
            assert set(check) == {"name", "status", "detail", "remedy"}
            assert check["detail"]
            assert check["remedy"] or check["status"] in ("ok", "info", "warning")


def test_text_shows_remedies(run_cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFOPT_CACHE_DIR", str(tmp_path / "cache"))
    output = run_cli("doctor", "--no-self-test").output
    assert str(tmp_path / "cache") in output
    assert "infopt models fetch smollm2-135m-instruct-q4_1" in output


def test_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "triton" else find(name)
    )
    package = checks(doctor.examine(self_test=False), "Optional packages")["triton"]
    assert package.status == "missing"
    assert package.remedy is not None
    assert "pip install" in package.remedy


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    found = checks(doctor.examine(self_test=False), "Compilers")
    assert {check.status for check in found.values()} == {"missing"}
    assert all(check.remedy for check in found.values())


def test_backends_are_those_that_the_engine_takes() -> None:
    """Doctor decides without loading anything; the answer must be the engine's own."""
    from infopt.ops import resolve_ops

    for dtype in (torch.float32, torch.bfloat16):
        chosen = doctor.choose_backends(torch.device("cpu"), dtype)
        taken = resolve_ops("auto", torch.device("cpu"), dtype).choices
        assert {op: backend for op, (backend, _) in chosen.items()} == {
            op: choice.backend for op, choice in taken.items()
        }


def test_self_test_reports_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariance, "find_variant_linear", lambda *_: "linear 3 x 3 differs")
    (check,) = doctor._invariance()
    assert check.status == "warning"
    assert check.detail == "linear 3 x 3 differs"
