"""The tags that families of models write around what they think to themselves."""

from __future__ import annotations

from typing import NamedTuple


class Tags(NamedTuple):
    """What stands around a thought."""

    begin: str
    end: str


TAGS = {
    "think": Tags("<think>", "</think>"),
    "thought": Tags("<thought>", "</thought>"),
    "seed": Tags("<seed:think>", "</seed:think>"),
    "mistral": Tags("[THINK]", "[/THINK]"),
}
"""By the name that ``--reasoning-parser`` takes."""


def tags_for(chat_template: str | None) -> Tags | None:
    """Return the tags that a chat template shows, if any."""
    return next((tags for tags in TAGS.values() if tags.begin in (chat_template or "")), None)
