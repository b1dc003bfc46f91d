from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infopt.bench.slo import SLO
from infopt.config import EngineConfig
from infopt.errors import ConfigError, ResultError
from infopt.select import choose, inherit_quality

Make = Callable[..., Any]
LARGER, SMALLER = (1.5, 1.4, 1.6, "better"), (1.2, 1.1, 1.3, "better")
P90 = SLO(ttft_s=0.2, percentile=90)


def rejected(recommendation: Any) -> dict[str, str]:
    return {r.run.split("/")[1]: "; ".join(r.reasons) for r in recommendation.rejected}


def test_constraints_come_before_the_objective(
    make_table: Make, make_run: Make, make_served: Make, make_quality: Make
) -> None:
    table = make_table(
        make_run("slow", **make_served(9, 0.4)),
        make_run("lossy", quality=make_quality(kl=0.05), **make_served(8)),
        make_run("good", config={"max_num_seqs": 8}, **make_served(5, interval=(4.8, 5.2))),
        make_run("less", config={"max_num_seqs": 4}, **make_served(3, interval=(2.8, 3.2))),
    )
    found = choose(table, P90)
    assert found.run == "batching/good"
    assert found.engine_config() == EngineConfig(model="tiny", max_num_seqs=8)
    why = rejected(found)
    assert why["slow"] == "TTFT p90 is 400 ms, the limit is 200 ms (+100 %)"
    assert why["lossy"].startswith("Mean KL")
    assert why["less"] == "Goodput: 3 requests/s against 5 requests/s"
    assert found.hardware["num_cores"] == 2 and found.hardware_id == "m1"
    first = found.evidence[0]
    assert (first.label, first.value, first.low, first.high, first.unit) == (
        "Goodput", 5.0, 4.8, 5.2, "requests/s",
    )  # fmt: skip
    ttft = next(e for e in found.evidence if e.column == "latency.ttft_s.p90")
    assert (ttft.value, ttft.unit) == (100.0, "ms")


def test_separate_intervals_are_decided(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    table = make_table(
        make_run("a", config={"max_num_seqs": 8}, **make_served(5, interval=(4.8, 5.2))),
        make_run("b", **make_served(4, interval=(3.8, 4.2))),
        with_reference=False,
    )
    found = choose(table, floor=None)
    assert (found.status, found.run, found.ties) == ("chosen", "batching/a", ())


def test_overlapping_intervals_are_undecided_and_the_simpler_one_is_taken(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    """A larger number inside the noise is no win."""
    odd = {"max_num_seqs": 8, "block_size": 32}
    table = make_table(
        make_run("odd", config=odd, **make_served(5, interval=(4.5, 5.5))),
        make_run("plain", **make_served(4.8, interval=(4.4, 5.2))),
        make_run("worse", config={"max_num_seqs": 4}, **make_served(3, interval=(2.9, 3.1))),
        with_reference=False,
    )
    found = choose(table, floor=None)
    assert (found.status, found.run) == ("undecided", "batching/plain")
    assert [t.run for t in found.ties] == ["batching/odd"]
    assert "cannot be told from batching/odd" in found.reason
    assert "fewest options" in found.reason
    assert list(rejected(found)) == ["worse"]


def test_of_equally_simple_ties_the_better_is_taken(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    """Pins: the earliest run was taken, even one that tended to be worse than the reference."""
    late, early = "2026-01-02T05:00:00Z", "2026-01-02T04:00:00Z"
    worse, better = make_served(5, interval=(4, 6)), make_served(5.5, interval=(4.5, 6.5))
    table = make_table(
        make_run("early", started=early, config={"max_num_seqs": 4}, **worse),
        make_run("late", started=late, config={"max_num_seqs": 8}, **better),
        with_reference=False,
    )
    assert choose(table, floor=None).run == "batching/late"


def test_of_equally_simple_ties_the_reference_stays(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    """Without a proof nothing is changed."""
    other = {"paired": (1.1, 0.9, 1.3, "undecided"), "reference": "batching/reference"}
    table = make_table(
        make_run("reference", config={"max_num_seqs": 4}, **make_served(5, interval=(4, 6))),
        make_run("other", config={"max_num_seqs": 8}, **make_served(5.5, **other)),
        with_reference=False,
    )
    found = choose(table, floor=None)
    assert (found.status, found.run) == ("undecided", "batching/reference")


def test_without_intervals_the_order_is_unproven(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    table = make_table(
        make_run("a", config={"max_num_seqs": 8}, **make_served(5)),
        make_run("b", **make_served(4)),
        with_reference=False,
    )
    found = choose(table, floor=None)
    assert (found.status, found.run) == ("unproven", "batching/a")
    assert "Unproven against batching/b" in found.notes[0]


@pytest.mark.parametrize(
    ("verdict", "status", "run"),
    [("better", "chosen", "batching/a"), ("undecided", "undecided", "baseline/float32")],
)
def test_a_paired_ratio_to_the_rival_itself_decides(
    make_table: Make, make_run: Make, make_served: Make, verdict: str, status: str, run: str
) -> None:
    served = make_served(5, paired=(1.1, 1.01, 1.2, verdict), interval=(1, 9))
    table = make_table(make_run("a", config={"max_num_seqs": 8, "block_size": 8}, **served))
    found = choose(table, P90)
    assert (found.status, found.run) == (status, run)


def test_paired_ratios_rank_before_absolute_numbers(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    """On a noisy machine the later run may show the larger number and still be the slower one."""
    table = make_table(
        make_run("a", config={"max_num_seqs": 8}, **make_served(5, paired=LARGER)),
        make_run("b", config={"max_num_seqs": 4}, **make_served(7, paired=SMALLER)),
    )
    found = choose(table, P90)
    assert (found.status, found.run) == ("chosen", "batching/a")
    paired = next(e for e in found.evidence if e.column.startswith("comparison."))
    assert (paired.value, paired.low, paired.high) == (1.5, 1.4, 1.6)
    assert "against baseline/float32" in paired.label


def test_ratios_to_different_references_are_not_compared(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    table = make_table(
        make_run("a", config={"max_num_seqs": 8}, **make_served(5, paired=LARGER)),
        make_run("b", config={"max_num_seqs": 4}, **make_served(7, paired=SMALLER, reference="x")),
    )
    assert choose(table, P90).status == "unproven"


def test_sizes_need_no_interval(make_table: Make, make_run: Make) -> None:
    memory = {"weights_bytes": 10, "kv_pool_bytes": 10}
    table = make_table(
        make_run("a", memory=memory),
        make_run("b", config={"block_size": 8}, memory=memory | {"kv_pool_bytes": 5}),
    )
    found = choose(table, objective="memory")
    assert (found.status, found.run) == ("chosen", "batching/b")


def test_the_same_configuration_twice_is_no_rival(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    table = make_table(
        make_run("a", **make_served(5)), make_run("again", **make_served(4)), with_reference=False
    )
    found = choose(table, floor=None)
    assert (found.status, found.ties, found.rejected) == ("chosen", (), ())
    assert "ran again as batching/again" in found.notes[0]


def test_nothing_feasible_is_an_answer(make_table: Make, make_run: Make, make_served: Make) -> None:
    table = make_table(
        make_run("near", config={"max_num_seqs": 8}, **make_served(2, 0.12)),
        make_run("far", **make_served(9, 0.9)),
    )
    found = choose(table, SLO(ttft_s=0.09, percentile=90))
    assert (found.status, found.run, found.config) == ("none_feasible", None, None)
    assert found.nearest is not None
    assert found.nearest.run == "baseline/float32"
    assert found.nearest.misses == ("TTFT p90 is 100 ms, the limit is 90 ms (+11.1 %)",)
    assert set(rejected(found)) == {"float32", "near", "far"}
    with pytest.raises(ConfigError, match="no configuration"):
        found.engine_config()


def test_a_feasible_run_without_the_objective_is_not_chosen(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    table = make_table(make_run("a", config={"max_num_seqs": 8}), make_run("b", **make_served(1)))
    found = choose(table)
    assert rejected(found)["a"] == "Goodput was not measured"
    only = choose(make_table(make_run("a"), with_reference=False), floor=None)
    assert only.status == "none_feasible"
    assert "measured the objective" in only.reason


def test_sensitivity_names_limit_change_and_winner(
    make_table: Make, make_run: Make, make_served: Make, make_quality: Make
) -> None:
    table = make_table(
        make_run("now", config={"max_num_seqs": 8}, **make_served(5, 0.15)),
        make_run("next", config={"max_num_seqs": 4}, **make_served(4, 0.08)),
        make_run("slower", config={"max_num_seqs": 16}, **make_served(9, 0.22)),
        make_run("slowest", config={"max_num_seqs": 32}, **make_served(99, 0.5)),
        make_run("worse", quality=make_quality(kl=0.05), **make_served(8)),
        make_run("pointless", quality=make_quality(kl=0.03), **make_served(1)),
        with_reference=True,
    )
    found = choose(table, P90)
    assert found.run == "batching/now"
    by_key = {(s.kind, s.constraint): s for s in found.sensitivity}
    assert set(by_key) == {("relax", "ttft_s"), ("relax", "max_kl"), ("tighten", "ttft_s")}
    relaxed = by_key["relax", "ttft_s"]
    assert (relaxed.run, relaxed.limit, relaxed.needed) == ("batching/slower", 0.2, 0.22)
    assert relaxed.message == (
        "If the limit on TTFT p90 were 220 ms instead of 200 ms (+10 %), batching/slower would win "
        "with 9 requests/s (goodput)."
    )
    assert by_key["relax", "max_kl"].run == "batching/worse"
    tightened = by_key["tighten", "ttft_s"]
    assert (tightened.run, tightened.needed) == ("batching/next", 0.15)
    changes = [abs((s.needed or 0) / (s.limit or 1) - 1) for s in found.sensitivity]
    assert changes == sorted(changes)


def test_inherited_quality_is_said(make_table: Make, make_run: Make, make_served: Make) -> None:
    ops = {"ops": {"backends": {}, "batch_invariant": True}}
    table = make_table(
        make_run("source", **ops),
        make_run("batch", config={"max_num_seqs": 8}, quality=None, **ops, **make_served(5)),
    )
    found = choose(inherit_quality(table), P90)
    assert found.run == "batching/batch"
    assert "Quality was measured on batching/source" in found.notes[0]


def test_presets_and_plain_data_are_accepted(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    table = make_table(make_run("a", config={"max_num_seqs": 8}, **make_served(5)))
    found = choose(table, {"ttft_s": 0.2, "percentile": 90}, {"max_kl": 1.0})
    assert found.slo_name is None and found.slo["percentile"] == 90
    assert found.floor == {"max_kl": 1.0, "max_perplexity_ratio": 1.02, "check_tasks": True}
    named = choose(table, "chat")
    assert named.slo_name == "chat" and named.status == "none_feasible"
    for wrong in ({"slo": "chatt"}, {"floor": "losy"}, {"objective": "goodputt"}):
        with pytest.raises(ConfigError, match="Did you mean"):
            choose(table, **wrong)


def test_one_machine_only(make_table: Make, make_run: Make) -> None:
    table = make_table(make_run("a", hardware={"hardware_id": "m2"}))
    with pytest.raises(ConfigError, match="one machine"):
        choose(table)
    with pytest.raises(ResultError):
        choose(table.iloc[:0])
