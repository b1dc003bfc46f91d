from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from infopt.errors import ConfigError
from infopt.select import OBJECTIVES, add_derived_columns, get_objective

Make = Callable[..., Any]


def test_every_objective_has_a_direction_and_a_unit() -> None:
    for name in OBJECTIVES:
        metric = get_objective(name).metric
        assert metric.better in ("lower", "higher")
        assert metric.display_unit, name
    assert get_objective("goodput").is_maximised
    assert not get_objective("ttft_p99").is_maximised


def test_an_unknown_objective_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'throughput'"):
        get_objective("throughputs")


def test_ratios_are_taken_to_the_reference_of_the_same_protocol(
    make_table: Make, make_run: Make, make_quality: Make
) -> None:
    other = make_quality()
    other["protocol"] = other["protocol"] | {"texts": {"docs": "other", "code": "c"}}
    recorded = {"docs": {"ratio": 1.5, "low": 1.4, "high": 1.6}}
    table: Any = add_derived_columns(
        make_table(
            make_run("worse", quality=make_quality(ratio=1.1)),
            make_run("other", quality=other),
            make_run("none", quality=None),
            make_run("own", quality=make_quality(perplexity_ratio=recorded)),
        )
    ).set_index("slug")
    ratio = table["quality.perplexity_ratio"]
    assert ratio["float32"] == 1.0
    assert ratio["worse"] == pytest.approx(1.1)
    assert pd.isna(ratio["other"]) and pd.isna(ratio["none"])
    assert table.loc["other", "quality.perplexity_ratio.code.ratio"] == 1.0
    assert ratio["own"] == 1.5  # what the record holds goes before what can be computed
    assert table.loc["float32", "quality.kl_mean"] == 0.0


def test_memory_adds_weights_and_pool(make_table: Make, make_run: Make) -> None:
    table: Any = add_derived_columns(
        make_table(
            make_run("a", memory={"weights_bytes": 10, "kv_pool_bytes": 5}),
            make_run("b", memory={"weights_bytes": 10}),
        )
    ).set_index("slug")
    assert table.loc["a", "memory.engine_bytes"] == 15
    assert pd.isna(table.loc["b", "memory.engine_bytes"])


def test_two_possible_references_must_be_told_apart(
    make_table: Make, make_run: Make, make_quality: Make
) -> None:
    second = make_run("again", stage="baseline", quality=make_quality(kl=None))
    table = make_table(second, make_run("a"))
    with pytest.raises(ConfigError, match="Several reference runs fit"):
        add_derived_columns(table)
    named = add_derived_columns(table, "baseline/again").set_index("slug")
    assert named.loc["a", "quality.perplexity_ratio"] == 1.0
    with pytest.raises(ConfigError, match="Did you mean 'baseline/again'"):
        add_derived_columns(table, "baseline/again2")
