"""The one look of all plots: fonts, colours and markers.

Colours are those of Okabe and Ito, which people with any common colour blindness tell apart. A
technique has the same colour in every notebook; markers differ as well, so that colour is never the
only sign.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#C9B800", "#0072B2", "#D55E00", "#CC79A7"
GREY, LIGHT_GREY = "#6E6E6E", "#C8C8C8"
# Where one plot compares more than seven:
BROWN, WINE, TEAL, INDIGO = "#7B4B2A", "#882255", "#117A8B", "#332288"
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

STYLE: Mapping[str, Any] = MappingProxyType(
    {
        "font.family": "DejaVu Sans",  # ships with matplotlib: the same metrics on every machine
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 10,
        "axes.labelsize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#E4E4E4",
        "grid.linewidth": 0.8,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 7,
        "figure.facecolor": "white",
        "savefig.facecolor": "white",
        "svg.hashsalt": "infopt",
    }
)

_WITHOUT = "without-"

# Techniques of one family are compared with each other, so within a family colours differ.
TECHNIQUE_COLORS: Mapping[str, str] = MappingProxyType(
    {
        # references and other engines
        "reference": BLACK,
        "baseline": BLACK,
        "none": BLACK,
        "float32": BLACK,
        "bfloat16": SKY,
        "float16": PURPLE,
        "infopt": BLUE,
        "transformers": ORANGE,
        "llama.cpp": GREEN,
        "vllm": VERMILION,
        # scheduling and paging
        "continuous": BLUE,
        "static": ORANGE,
        "static_padded": VERMILION,
        "prefix-cache": GREEN,
        "no-prefix-cache": GREY,
        "chunked": SKY,
        # weight quantization
        "q4_1": BLUE,
        "q4_1-a8": TEAL,
        "int8": GREEN,
        "int8-g64-a8": INDIGO,
        "w8a8": SKY,
        "int4-rtn": ORANGE,
        "int4-awq": VERMILION,
        "int4-gptq": PURPLE,
        "int3": YELLOW,
        "int2": GREY,
        "fp8": BROWN,
        "nf4": YELLOW,
        "llm.int8": GREEN,
        "mixed": WINE,
        # KV compression
        "kv-int8": GREEN,
        "kv-int4": ORANGE,
        "kv-int2": GREY,
        "kv-fp8": BROWN,
        "kv-int8-snapkv": TEAL,
        "kv-int8-streaming": WINE,
        "cache-off": BLACK,
        "cache-on": GREEN,
        "cache-small": ORANGE,
        "snapkv": BLUE,
        "expected": SKY,
        "h2o": VERMILION,
        "tova": PURPLE,
        "knorm": YELLOW,
        "streaming": ORANGE,
        "random": GREY,
        # speculative decoding
        "ngram": BLUE,
        "suffix": SKY,
        "draft_model": ORANGE,
        "early_exit": GREEN,
        "draft_head": VERMILION,
        "auto": PURPLE,
        # models and stages
        "dense": BLUE,
        "moe": ORANGE,
        "moe-32": PURPLE,
        "dense-large": SKY,
        "batching": BLUE,
        "quantization": ORANGE,
        "kv_cache": GREEN,
        "speculative": VERMILION,
        "power": PURPLE,
        "select": SKY,
        # questions whose winners a composition has; ``without-x`` is drawn like x
        "composed": BLACK,
        "unoptimized": GREY,
        "precision": SKY,
        "scheduling": BLUE,
        "max_num_seqs": BROWN,
        "token_budget": TEAL,
        "page_size": YELLOW,
        "prefix_cache": GREEN,
        "schemes": ORANGE,
        "compression": WINE,
        "speculation": VERMILION,
        "threads": PURPLE,
    }
)


def color_of(name: object) -> str:
    """Return the colour of a technique; an unknown name always gets the same one, too.

    ``int4-awq-g64`` has the colour of ``int4-awq``: what follows a hyphen is a setting.
    """
    return _known_color(str(name)) or PALETTE[_number(str(name)) % len(PALETTE)]


def marker_of(name: object) -> str:
    """Return the marker of a technique: always the same one."""
    return MARKERS[_number(f"marker:{name}") % len(MARKERS)]


def colors_for(names: Iterable[object], reference: str | None = None) -> dict[str, str]:
    """Return a colour for each of the names that share a plot.

    Known techniques keep theirs. Unknown ones keep ``color_of`` as long as it is free in this plot;
    otherwise they take the next free one, in the order of their names.

    Args:
        names: What is drawn.
        reference: The name that the others are compared with: black, whatever technique it is.
    """
    unique = sorted({str(name) for name in names})
    colors = {name: color for name in unique if (color := _known_color(name))}
    colors |= {name: BLACK for name in unique if name == reference}
    for name in unique:
        if name not in colors:
            start = PALETTE.index(color_of(name))
            rotated = PALETTE[start:] + PALETTE[:start]
            free = (color for color in rotated if color not in colors.values())
            colors[name] = next(free, rotated[0])
    return colors


def markers_for(names: Iterable[object]) -> dict[str, str]:
    """Return a marker for each of the names that share a plot, different while there are enough."""
    markers: dict[str, str] = {}
    for name in sorted({str(name) for name in names}):
        start = MARKERS.index(marker_of(name))
        rotated = MARKERS[start:] + MARKERS[:start]
        free = (marker for marker in rotated if marker not in markers.values())
        markers[name] = next(free, rotated[0])
    return markers


def row_colors(
    labels: Sequence[object],
    groups: Sequence[object] | None = None,
    reference: str | None = None,
) -> list[str]:
    """Return a colour per row: by group, or by technique, or one for all.

    Rows that are no technique (``max_num_seqs=8``) are told apart by their names; colours for each
    of them would look like a meaning that is not there.

    Args:
        labels: Names of the rows.
        groups: Their groups, if these have the colours.
        reference: The row that the others are compared with: black.
    """
    if groups is not None:
        colors = colors_for(groups)
        return [colors[str(group)] for group in groups]
    return [
        BLACK if str(label) == reference else _known_color(str(label)) or BLUE for label in labels
    ]


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Run a plotting function under the common style, and leave the caller's settings alone."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib as mpl

        settings: Any = dict(STYLE)
        with mpl.rc_context(settings):
            return function(*args, **kwargs)

    return wrapper


def _known_color(name: str) -> str | None:
    name = name.removeprefix(_WITHOUT)
    while name not in TECHNIQUE_COLORS:
        name, hyphen, _ = name.rpartition("-")
        if not hyphen:
            return None
    return TECHNIQUE_COLORS[name]


def _number(name: str) -> int:
    # hash() differs between processes
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
