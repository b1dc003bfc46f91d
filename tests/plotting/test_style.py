from __future__ import annotations

import os
import subprocess
import sys

from infopt.plotting.style import (
    MARKERS,
    PALETTE,
    TECHNIQUE_COLORS,
    color_of,
    colors_for,
    markers_for,
    row_colors,
)


def test_a_technique_keeps_its_colour() -> None:
    assert color_of("continuous") == colors_for(["static", "continuous", "x"])["continuous"]
    assert color_of("int4-awq-g64") == color_of("int4-awq-g128") == TECHNIQUE_COLORS["int4-awq"]
    assert color_of("continuous") != color_of("static")


def test_techniques_that_are_compared_differ() -> None:
    for family in (
        ("continuous", "static", "static_padded"),
        ("none", "int8", "int4-rtn", "int4-awq", "int4-gptq"),
        ("ngram", "suffix", "draft_model", "early_exit", "draft_head"),
        ("dense", "moe"),
        ("transformers", "llama.cpp", "vllm", "infopt"),
    ):
        assert len({color_of(name) for name in family}) == len(family)


def test_a_run_without_a_technique_is_drawn_like_the_technique() -> None:
    assert color_of("without-schemes") == color_of("schemes") != color_of("composed")
    assert color_of("int8-g64-a8") != color_of("int8-g64")


def test_the_reference_is_black_whatever_technique_it_is() -> None:
    assert colors_for(["auto", "kv-int8"], "auto")["auto"] == color_of("reference")
    assert colors_for(["auto", "kv-int8"])["auto"] == color_of("auto")
    assert row_colors(["auto", "x"], None, "auto")[0] == color_of("reference")


def test_unknown_names_are_told_apart_while_colours_last() -> None:
    names = [f"thing {i}" for i in range(len(PALETTE))]
    assert len(set(colors_for(names).values())) == len(PALETTE)
    assert len(set(markers_for(names).values())) == len(MARKERS)
    many = colors_for([f"thing {i}" for i in range(50)])
    assert len(many) == 50 and set(many.values()) <= set(PALETTE)


def test_unknown_colours_do_not_depend_on_order_or_process() -> None:
    names = ["alpha", "beta", "gamma", "static"]
    assert colors_for(names) == colors_for(reversed(names))
    code = "from infopt.plotting.style import colors_for as c; print(c(['beta', 'alpha']))"
    env = os.environ | {"PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(colors_for(["alpha", "beta"]))


def test_rows_without_a_technique_share_a_colour() -> None:
    assert len(set(row_colors(["max_num_seqs=1", "max_num_seqs=2"]))) == 1
    assert row_colors(["static", "x"])[0] == color_of("static")
    assert row_colors(["a", "b"], ["static", "continuous"]) == [
        color_of("static"),
        color_of("continuous"),
    ]
