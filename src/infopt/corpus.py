"""Real text that every Python installation holds, split into train and held-out.

Two kinds: ``docs`` is the language reference that ``help()`` shows (``pydoc_data.topics``), and
``code`` is the source of the standard library. Workloads and calibration read the train split,
perplexity and fidelity the held-out split. The text depends on the Python version alone, and
:func:`content_hash` says which text a number was measured on.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from infopt.errors import ConfigError, DependencyError, nearest

Kind = Literal["docs", "code"]
Split = Literal["train", "heldout"]

CODE_PACKAGES = (
    "",  # the single-file modules at the top of the library
    "asyncio",
    "collections",
    "concurrent/futures",
    "email",
    "html",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "unittest",
    "urllib",
    "wsgiref",
    "xml/dom",
    "xml/etree",
)
"""Folders of the standard library whose modules are read (tests and data tables are left out)."""

HELDOUT_PERCENT: dict[str, int] = {"docs": 20, "code": 10}
"""Share of documents in the held-out split: about 90 kB of docs and 750 kB of code."""

_MIN_DOCUMENT_CHARS = 400  # shorter ones are stubs that only re-export names
_MIN_REPEAT_CHARS = 60  # shorter paragraphs ("else:", "Example:") repeat by nature
_BLANK_LINES = re.compile(r"\n[ \t]*\n")


class Document(NamedTuple):
    """One topic or module.

    Attributes:
        name: Topic name, or path of the module below the standard library.
        text: Its text, without paragraphs that an earlier document holds too.
    """

    name: str
    text: str


def docs_text(split: Split = "train") -> str:
    """Return the documentation text of a split, topics in a fixed shuffled order."""
    return text("docs", split)


def code_text(split: Split = "train") -> str:
    """Return the Python source text of a split, modules in a fixed shuffled order."""
    return text("code", split)


def text(kind: Kind, split: Split) -> str:
    """Return all documents of a kind and split, joined by blank lines."""
    return "\n\n".join(document.text for document in documents(kind, split))


def content_hash(kind: Kind, split: Split) -> str:
    """Return the first 16 hex digits of the SHA-256 of :func:`text`, to be put into records."""
    return hashlib.sha256(text(kind, split).encode()).hexdigest()[:16]


def documents(kind: Kind, split: Split) -> tuple[Document, ...]:
    """Return the documents of a kind and split.

    No paragraph of 60 characters or more is in both splits, or twice in one: topics quote each
    other at length, and a text seen before would flatter perplexity and the prefix cache alike.

    Raises:
        ConfigError: If the kind or the split is unknown.
        DependencyError: If this Python was installed without the text.
    """
    _check("kind", kind, get_args(Kind))
    _check("split", split, get_args(Split))
    return _split_documents(kind)[split]


@functools.cache
def _split_documents(kind: Kind) -> dict[str, tuple[Document, ...]]:
    """Split a kind; held-out documents go first, so that train loses what both contain."""
    ordered = sorted(_read(kind), key=lambda document: _digest(kind, document.name))
    heldout = [d for d in ordered if _is_heldout(kind, d.name)]
    train = [d for d in ordered if not _is_heldout(kind, d.name)]
    seen: set[str] = set()
    return {
        "heldout": tuple(_without_repeats(heldout, seen)),
        "train": tuple(_without_repeats(train, seen)),
    }


def _without_repeats(docs: Iterable[Document], seen: set[str]) -> Iterable[Document]:
    """Yield documents without the paragraphs in ``seen``, to which new ones are added."""
    for document in docs:
        kept = [p for p in _BLANK_LINES.split(document.text) if _is_new(p, seen)]
        joined = "\n\n".join(kept).strip("\n")
        if len(joined) >= _MIN_DOCUMENT_CHARS:
            yield Document(document.name, joined + "\n")


def _is_new(paragraph: str, seen: set[str]) -> bool:
    """Tell whether a paragraph is short or first seen here (indentation does not count)."""
    key = " ".join(paragraph.split())
    if len(key) < _MIN_REPEAT_CHARS:
        return True
    if key in seen:
        return False
    seen.add(key)
    return True


def _digest(kind: str, name: str) -> bytes:
    return hashlib.sha256(f"{kind}/{name}".encode()).digest()


def _is_heldout(kind: str, name: str) -> bool:
    """Decide by name alone, so that new modules of a later Python move no old one."""
    return int.from_bytes(_digest(kind, name)[:4], "big") % 100 < HELDOUT_PERCENT[kind]


def _read(kind: Kind) -> list[Document]:
    return _read_topics() if kind == "docs" else _read_modules()


def _read_topics() -> list[Document]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DependencyError(
            "This Python has no pydoc_data.topics, the documentation text of the corpus.",
            field="corpus",
            value="docs",
            remedy="Install the complete standard library of this Python.",
        ) from error
    return [Document(name, body) for name, body in topics.items()]


def _read_modules() -> list[Document]:
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for package in CODE_PACKAGES for path in (root / package).glob("*.py")]
    if not paths:
        raise DependencyError(
            f"No standard-library sources in {root}, the code text of the corpus.",
            field="corpus",
            value="code",
            remedy="Use a Python that ships its library as .py files.",
        )
    return [
        Document(path.relative_to(root).as_posix(), path.read_text("utf-8"))
        for path in paths
        if not path.name.startswith("_sysconfigdata")  # differs between builds of one version
    ]


def _check(name: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise ConfigError(
            f"Unknown corpus {name} {value!r}.{nearest(value, valid)}",
            field=name,
            value=value,
            remedy=f"Valid: {', '.join(valid)}.",
        )
