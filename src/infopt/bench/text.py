"""Real text without a download: CPython's documentation topics and standard-library sources.

Both are in every Python installation. Documents are split by the hash of their name into ``train``
and ``heldout``, so that a document stays on its side when the collection grows. The text differs
between Python versions: record `corpus_identity` beside anything measured on it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import sysconfig
from pathlib import Path
from typing import Literal, get_args

from infopt.errors import WorkloadError, nearest

TextSource = Literal["docs", "code"]
Split = Literal["train", "heldout", "all"]

_HELDOUT_ONE_IN = 5

# Pure-Python modules that exist from Python 3.11 to 3.13, with little data in them.
_CODE_MODULES = (
    "argparse", "ast", "asyncio/base_events", "asyncio/locks", "asyncio/queues", "asyncio/streams",
    "asyncio/tasks", "bdb", "bisect", "calendar", "cmd", "code", "codecs", "collections/__init__",
    "concurrent/futures/_base", "concurrent/futures/thread", "configparser", "contextlib", "copy",
    "csv", "dataclasses", "difflib", "dis", "doctest", "email/message", "enum", "filecmp",
    "fileinput", "fnmatch", "fractions", "ftplib", "functools", "getopt", "glob", "graphlib",
    "gzip", "heapq", "hmac", "html/parser", "http/client", "http/cookies", "http/server",
    "imaplib", "inspect", "ipaddress", "json/decoder", "json/encoder", "linecache",
    "logging/__init__", "logging/handlers", "mailbox", "mimetypes", "numbers", "optparse", "pdb",
    "pickle", "platform", "plistlib", "poplib", "pprint", "profile", "pstats", "queue", "random",
    "reprlib", "sched", "selectors", "shelve", "shlex", "shutil", "smtplib", "socket",
    "socketserver", "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap",
    "threading", "timeit", "tokenize", "trace", "traceback", "types", "typing", "unittest/case",
    "unittest/mock", "urllib/parse", "urllib/request", "uuid", "wave", "weakref", "zipfile",
)  # fmt: skip


def documents(source: TextSource, split: Split = "all") -> dict[str, str]:
    """Return documents by name, in name order.

    Args:
        source: ``docs`` (about 80 topics, 0.5 MB) or ``code`` (about 90 modules, 2 MB).
        split: ``heldout`` is about one document in five, ``train`` the others.

    Raises:
        WorkloadError: For an unknown source or split, or a Python without its own sources.
    """
    _check_choice("source", source, get_args(TextSource))
    _check_choice("split", split, get_args(Split))
    texts = _read_docs() if source == "docs" else _read_code()
    return {name: texts[name] for name in sorted(texts) if _in_split(name, split)}


def corpus_text(source: TextSource, split: Split = "all") -> str:
    """Return all documents of a split as one string."""
    return "\n\n".join(documents(source, split).values())


def corpus_identity(source: TextSource, split: Split = "all") -> str:
    """Return a short content hash of a corpus, for result records."""
    return hashlib.sha256(corpus_text(source, split).encode()).hexdigest()[:16]


def _in_split(name: str, split: Split) -> bool:
    if split == "all":
        return True
    digest = hashlib.sha256(name.encode()).digest()
    is_heldout = int.from_bytes(digest[:4], "big") % _HELDOUT_ONE_IN == 0
    return is_heldout == (split == "heldout")


@functools.cache
def _read_docs() -> dict[str, str]:
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise _missing_text("the documentation topics (pydoc_data)") from error
    # "docs/" keeps the names, and so the split, apart from those of modules.
    return {f"docs/{name}": text for name, text in topics.items()}


@functools.cache
def _read_code() -> dict[str, str]:
    root = Path(sysconfig.get_path("stdlib"))
    paths = {name: _source_path(root, name) for name in _CODE_MODULES}
    found = {f"code/{n}": p.read_text("utf-8") for n, p in paths.items() if p is not None}
    # A module may leave the library; a stripped installation has none of them.
    if len(found) < len(_CODE_MODULES) // 2:
        raise _missing_text(f"the sources of the standard library ({root})")
    return found


def _source_path(root: Path, name: str) -> Path | None:
    """Return the file of a module; modules turn into packages between versions."""
    for candidate in (root / f"{name}.py", root / name / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _missing_text(what: str) -> WorkloadError:
    return WorkloadError(
        f"This Python installation lacks {what}, which workloads cut their text from.",
        field="source",
        remedy="Use a full CPython, or workloads of random token ids (no tokenizer).",
    )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise WorkloadError(
            f"{name}={value!r} is not a choice.{nearest(str(value), choices)}",
            field=name,
            value=value,
            remedy=f"Choose one of: {', '.join(choices)}.",
        )
