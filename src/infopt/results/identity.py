"""Which code and which libraries gave a number."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import infopt

_PACKAGE = Path(infopt.__file__).parent
_PACKAGES = ("torch", "transformers", "numpy", "triton", "safetensors")


def library_versions() -> dict[str, str | None]:
    """Return the versions of infopt, Python and the libraries that decide numbers."""
    versions: dict[str, str | None] = {
        "infopt": infopt.__version__,
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


@functools.cache
def code_identity() -> str:
    """Return what identifies the running code, as it was when first asked.

    In a git checkout that is the commit; with uncommitted changes in the package (kernels
    included) ``<commit>-dirty-<hash of the changes>``, so that two different working trees never
    look alike. Elsewhere it is ``version:<release>``.
    """
    commit = _git("rev-parse", "HEAD")
    # An environment inside somebody else's repository is not a checkout of this package.
    if commit is None or _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return f"version:{infopt.__version__}"
    changes = _changes()
    return f"{commit.strip()}-dirty-{_digest(changes, 8)}" if changes else commit.strip()


def hardware_id(hardware: Mapping[str, Any]) -> str:
    """Return the short name of a machine: its fingerprint's own, or a hash of the fingerprint."""
    own = hardware.get("hardware_id")
    return own if isinstance(own, str) else _digest(json.dumps(hardware, sort_keys=True), 12)


def _changes() -> str:
    """Return the uncommitted changes of the code as text ("" when there are none)."""
    folders = [str(_PACKAGE), str((_PACKAGE / "kernels").resolve())]
    diff = _git("diff", "HEAD", "--binary", "--", *folders) or ""
    untracked = _git("ls-files", "--others", "--exclude-standard", "--full-name", "--", *folders)
    top = (_git("rev-parse", "--show-toplevel") or "").strip()
    for name in sorted((untracked or "").splitlines()):
        file = Path(top, name)
        content = file.read_bytes() if file.is_file() else b""
        diff += f"{name} {hashlib.sha256(content).hexdigest()}\n"
    return diff


def _git(*arguments: str) -> str | None:
    """Return the output of a git command in the package's folder, or None where it fails."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=_PACKAGE, capture_output=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def _digest(text: str, num_chars: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:num_chars]
