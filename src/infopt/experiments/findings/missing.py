"""What a notebook shows where a run has not measured something."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence that a notebook displays in place of a plot or a table.

    Attributes:
        text: Markdown.
    """

    text: str

    def _repr_markdown_(self) -> str:
        return self.text


def not_measured(what: str) -> Remark:
    """Return the remark that something is no part of this run.

    Args:
        what: What is missing, as the beginning of a sentence.
    """
    return Remark(f"*{what} is not part of this run.*")
