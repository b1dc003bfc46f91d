"""Wrong programs that look right: one operator, constant or word of a function body changed.

Changes are made token by token, so that layout stays the same and gives nothing away.
"""

from __future__ import annotations

import io
import random
import tokenize

SWAPS: dict[str, tuple[str, ...]] = {
    "<": (">=", ">"),
    ">": ("<=", "<"),
    "<=": (">", ">="),
    ">=": ("<", "<="),
    "==": ("!=",),
    "!=": ("==",),
    "+": ("-",),
    "-": ("+",),
    "*": ("+",),
    "/": ("*",),
    "//": ("*",),
    "%": ("//",),
    "**": ("*",),
    "+=": ("-=",),
    "-=": ("+=",),
    "*=": ("+=",),
    "and": ("or",),
    "or": ("and",),
    "True": ("False",),
    "False": ("True",),
    "min": ("max",),
    "max": ("min",),
    "any": ("all",),
    "all": ("any",),
    "sum": ("len", "max"),
    "len": ("sum", "max"),
    "upper": ("lower",),
    "lower": ("upper",),
    "append": ("remove",),
    "startswith": ("endswith",),
    "endswith": ("startswith",),
}
"""What a token may be changed to; nearly always the program then does something else."""


def mutants(body: str, rng: random.Random) -> list[str]:
    """Return all bodies with one change, shuffled; none equals ``body``, none occurs twice.

    Args:
        body: Indented statements of a function.
        rng: Shuffles them.
    """
    header = "def f():\n"
    lines = (header + body).splitlines(keepends=True)
    found = []
    for token in tokenize.generate_tokens(io.StringIO("".join(lines)).readline):
        for replacement in _replacements(token):
            row, (start, end) = token.start[0] - 1, (token.start[1], token.end[1])
            changed = lines[row][:start] + replacement + lines[row][end:]
            found.append("".join([*lines[1:row], changed, *lines[row + 1 :]]))
    unique = [mutant for mutant in dict.fromkeys(found) if mutant != body]
    rng.shuffle(unique)
    return unique


def _replacements(token: tokenize.TokenInfo) -> tuple[str, ...]:
    """Return what a token may become (nothing for most)."""
    if token.start[0] == 1:  # the header
        return ()
    if token.type == tokenize.NUMBER and token.string.isdecimal():
        return (str(int(token.string) + 1),)
    if token.type in (tokenize.OP, tokenize.NAME):
        return SWAPS.get(token.string, ())
    return ()
