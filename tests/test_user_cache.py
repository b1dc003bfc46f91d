"""The folder for what can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from infopt.errors import ConfigError
from infopt.user_cache import CACHE_VARIABLE, cache_dir


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.setenv(CACHE_VARIABLE, "~/mine")
    assert cache_dir() == Path.home() / "mine"
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_dir().name == "infopt"


def test_without_platformdirs_it_is_the_same(monkeypatch, tmp_path):
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "infopt"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_dir() == Path.home() / ".cache" / "infopt"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    """Pins: a user of a container without a home got the traceback of another package."""
    for variable in (CACHE_VARIABLE, "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # which has no entry
    with pytest.raises(ConfigError, match="no home folder") as error:
        cache_dir()
    assert CACHE_VARIABLE in str(error.value.remedy)
