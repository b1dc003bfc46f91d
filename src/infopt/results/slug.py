"""Names of runs: made from their options, never from a row number or a counter."""

from __future__ import annotations

import hashlib
import json
import re

from infopt.errors import ResultError
from infopt.results.plain import to_plain

SLUG_PATTERN = re.compile(r"[a-z0-9][a-z0-9._=-]*")
STAGE_PATTERN = re.compile(r"[a-z][a-z0-9_]*")

# A slug becomes part of longer file names (benchmark and log files), which stop at 255 bytes.
MAX_SLUG_BYTES = 199
_NUM_HASH_CHARS = 10


def make_slug(**options: object) -> str:
    """Return the name of the run with these options.

    The same options give the same slug in any order and in any process; different options give
    different slugs. Where the readable form would lose something (upper case, spaces, nesting,
    too many options), a hash of the exact options is appended.

    >>> make_slug(scheduling="static", max_num_seqs=8)
    'max_num_seqs=8-scheduling=static'
    """
    if not options:
        raise ResultError("A slug needs at least one option.", field="slug", value=options)
    plain = {key: to_plain(options[key], key) for key in sorted(options)}
    parts = [_part(key, value) for key, value in plain.items()]
    text = "-".join(text for text, _ in parts)
    if all(exact for _, exact in parts) and len(text) <= MAX_SLUG_BYTES:
        return text
    exact = json.dumps(plain, sort_keys=True)
    digest = hashlib.sha256(exact.encode()).hexdigest()[:_NUM_HASH_CHARS]
    return f"{text[: MAX_SLUG_BYTES - _NUM_HASH_CHARS - 1].rstrip('-')}-{digest}"


def check_slug(slug: str, stage: str | None = None) -> None:
    """Refuse names that are not safe as file names on every system.

    Raises:
        ResultError: Names the field and the value.
    """
    if not SLUG_PATTERN.fullmatch(slug) or len(slug) > MAX_SLUG_BYTES:
        raise ResultError(
            f"{slug!r} is not a valid slug.",
            field="slug",
            value=slug,
            remedy=f"At most {MAX_SLUG_BYTES} of a-z 0-9 . _ = -, a letter or digit first; "
            "make_slug(**options) makes one.",
        )
    if stage is not None and not STAGE_PATTERN.fullmatch(stage):
        raise ResultError(
            f"{stage!r} is not a valid stage name.",
            field="stage",
            value=stage,
            remedy="Use a-z, 0-9 and _, a letter first.",
        )


def _part(key: str, value: object) -> tuple[str, bool]:
    """Return ``key=value`` as slug text and whether the text says exactly that."""
    name, exact_key = _clean(key)
    text, exact_value = _value_text(value)
    return f"{name}={text}", exact_key and exact_value and "-" not in name and "=" not in name


def _value_text(value: object) -> tuple[str, bool]:
    if isinstance(value, str):
        text, exact = _clean(value)
        return text, exact and "=" not in text and not _reads_as_json(value)
    text, exact = _clean(json.dumps(value, sort_keys=True))
    return text, exact


def _clean(text: str) -> tuple[str, bool]:
    clean = re.sub(r"[^a-z0-9._=-]+", "-", text.lower())
    return clean, clean == text and text != ""


def _reads_as_json(text: str) -> bool:
    """Tell whether a string looks like a number, true, false or null ("8" is not 8)."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
