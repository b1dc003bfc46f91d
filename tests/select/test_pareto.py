from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.errors import ConfigError, DependencyError, ResultError
from infopt.select import hypervolume, pareto_front

Make = Callable[..., Any]
OBJECTIVES = ["throughput", "ttft_p50"]
COLUMNS = ["throughput.output_tokens_per_s", "latency.ttft_s.p50"]


def table_of(points: list[tuple[float | None, float | None]], **columns: Any) -> Any:
    """Runs r0, r1, ... with (throughput, TTFT)."""
    rows = [
        {
            "run": f"s/r{i}",
            "stage": "s",
            "slug": f"r{i}",
            "status": "ok",
            COLUMNS[0]: p[0],
            COLUMNS[1]: p[1],
        }
        for i, p in enumerate(points)
    ]
    return pd.DataFrame(rows).assign(stage="s", status="ok", **columns)


def test_directions_count() -> None:
    """More throughput and less latency are better; the second run is worse in both."""
    marked: Any = pareto_front(table_of([(100, 0.1), (90, 0.2), (200, 0.5)]), OBJECTIVES)
    assert list(marked["pareto"]) == [True, False, True]
    assert list(marked["pareto_reason"]) == ["front", "dominated by s/r0", "front"]


def test_equal_runs_are_on_the_front_together() -> None:
    marked: Any = pareto_front(table_of([(100, 0.1), (100, 0.1), (100, 0.2)]), OBJECTIVES)
    assert list(marked["pareto"]) == [True, True, False]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)), min_size=1,
             max_size=14)
)  # fmt: skip
def test_the_front_is_what_no_run_beats(points: list[tuple[int, int, int]]) -> None:
    memory = [c for *_, c in points]
    table = table_of([(a, b) for a, b, _ in points], **{"memory.engine_bytes": memory})
    marked: Any = pareto_front(table, [*OBJECTIVES, "memory"])

    def beats(p: tuple[int, int, int], q: tuple[int, int, int]) -> bool:
        return p != q and p[0] >= q[0] and p[1] <= q[1] and p[2] <= q[2]

    expected = [not any(beats(p, q) for p in points) for q in points]
    assert list(marked["pareto"]) == expected
    for i, reason in enumerate(marked["pareto_reason"]):
        if not expected[i]:
            winner = int(str(reason).removeprefix("dominated by s/r"))
            assert expected[winner] and beats(points[winner], points[i])


def test_missing_numbers_and_failed_runs_are_excluded_with_a_reason() -> None:
    table = table_of(
        [(100, 0.1), (500, None), (900, 0.001)],
        **{"failure.message": [None, None, "out of memory"]},
    )
    table.loc[2, "status"] = "failed"
    marked: Any = pareto_front(table, OBJECTIVES)
    assert list(marked["pareto"]) == [True, False, False]
    assert list(marked["pareto_excluded"]) == [False, True, True]
    assert marked["pareto_reason"][1] == "ttft_p50 was not measured"
    assert marked["pareto_reason"][2] == "the run failed: out of memory"


def test_modelled_energy_takes_no_part_unless_asked() -> None:
    table = table_of(
        [(100, 0.1), (90, 0.1)],
        **{"energy.j_per_token": [2.0, 1.0], "energy.source": ["rapl", "modelled"]},
    )
    marked: Any = pareto_front(table, ["throughput", "j_per_token"])
    assert list(marked["pareto"]) == [True, False]
    assert marked["pareto_reason"][1] == "j_per_token is modelled, not measured"
    marked = pareto_front(table, ["throughput", "j_per_token"], include_modelled_energy=True)
    assert list(marked["pareto"]) == [True, True]


def test_a_cost_made_of_modelled_energy_takes_no_part_either() -> None:
    """Pins: with a price of electricity the energy that decides nothing decided as a cost."""
    table = table_of(
        [(100, 0.1), (100, 0.2)],
        **{"cost.per_request": [2.0, 1.0], "cost.derived": [False, True]},
    )
    marked: Any = pareto_front(table, ["throughput", "cost_per_request"])
    assert list(marked["pareto"]) == [True, False]
    reason = "cost_per_request rests on an energy that is modelled, not measured"
    assert marked["pareto_reason"][1] == reason
    marked = pareto_front(table, ["throughput", "cost_per_request"], include_modelled_energy=True)
    assert list(marked["pareto"]) == [False, True]


def test_no_usable_run_is_an_empty_front() -> None:
    marked: Any = pareto_front(table_of([(100, None)]), OBJECTIVES)
    assert list(marked["pareto"]) == [False]
    assert hypervolume(table_of([(100, None)]), OBJECTIVES).share == 0.0


def test_the_hypervolume_of_known_boxes() -> None:
    bounds = {"throughput": (200.0, 0.0), "ttft_p50": (0.0, 1.0)}
    single = hypervolume(table_of([(100, 0.5)]), OBJECTIVES, bounds=bounds)
    assert single.share == pytest.approx(0.25)
    both = hypervolume(table_of([(100, 0.5), (200, 0.75)]), OBJECTIVES, bounds=bounds)
    assert both.share == pytest.approx(0.25 + 0.5 * 0.25)
    assert both.num_points == 2
    outside = hypervolume(table_of([(-5, 0.5), (300, 2.0)]), OBJECTIVES, bounds=bounds)
    assert outside.share == 0.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=10))
def test_a_dominated_run_adds_nothing_and_any_run_takes_nothing(
    points: list[tuple[int, int]],
) -> None:
    bounds = {"throughput": (60.0, 0.0), "ttft_p50": (0.0, 60.0)}
    full = hypervolume(table_of(points), OBJECTIVES, bounds=bounds).share
    front = [p for p, on in zip(points, pareto_front(table_of(points), OBJECTIVES)["pareto"],
                                strict=True) if on]  # fmt: skip
    assert hypervolume(table_of(front), OBJECTIVES, bounds=bounds).share == pytest.approx(full)
    assert hypervolume(table_of(points[:1]), OBJECTIVES, bounds=bounds).share <= full + 1e-12


def test_own_bounds_are_the_best_and_worst_values() -> None:
    result = hypervolume(table_of([(100, 0.1), (200, 0.5)]), OBJECTIVES)
    assert result.bounds == {"throughput": (200.0, 100.0), "ttft_p50": (0.1, 0.5)}
    assert hypervolume(table_of([(7, 0.1)]), OBJECTIVES).share == pytest.approx(1.0)


@pytest.mark.parametrize(
    "bounds",
    [
        {"throughput": (1.0, 0.0)},
        {"throughput": (0.0, 1.0), "ttft_p50": (0.0, 1.0)},
        {"throughput": (1.0, 1.0), "ttft_p50": (0.0, 1.0)},
    ],
)
def test_impossible_bounds_are_refused(bounds: dict[str, tuple[float, float]]) -> None:
    with pytest.raises(ConfigError) as caught:
        hypervolume(table_of([(1, 0.1)]), OBJECTIVES, bounds=bounds)
    assert caught.value.field == "bounds"


def test_objectives_must_be_different_names() -> None:
    for objectives in ([], ["throughput", "throughput"], ["speed"]):
        with pytest.raises(ConfigError):
            pareto_front(table_of([(1, 0.1)]), objectives)


def test_tables_without_identity_or_with_repeated_runs_are_refused() -> None:
    with pytest.raises(ResultError, match="'status'"):
        pareto_front(table_of([(1, 0.1)]).drop(columns="status"), OBJECTIVES)
    twice = pd.concat([table_of([(1, 0.1)])] * 2)
    with pytest.raises(ConfigError, match="more than once"):
        pareto_front(twice, OBJECTIVES)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "moocore", None)
    with pytest.raises(DependencyError, match="moocore"):
        pareto_front(table_of([(1, 0.1)]), OBJECTIVES)


def test_values_of_numpy_are_numbers() -> None:
    table = table_of([(np.float64(1), np.float64(0.1)), (np.int64(2), np.float32(0.05))])
    assert list(pareto_front(table, OBJECTIVES)["pareto"]) == [False, True]
