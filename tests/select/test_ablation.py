"""What each technique is worth, and whether the whole is the product of its parts."""

from __future__ import annotations

import pytest

from infopt.select.ablation import ablation, effects_of
from infopt.select.front import front_of, knee_of
from infopt.select.interactions import interactions
from infopt.select.objectives import get_objectives
from infopt.select.rows import rows_of


def compared(**ratios):
    """Comparison section of runs paired with the composition: (median, low, high, verdict)."""
    keys = ("median", "low", "high", "verdict")
    return {
        name: dict(zip(keys, values, strict=True)) | {"num_pairs": 6, "reference": "f.composed"}
        for name, values in ratios.items()
    }


@pytest.fixture
def rows(make_table, make_run, make_quality):
    """The composition, two runs without a technique, and one without any."""

    def make(kls=(0.03, 0.01, 0.005), whole=(0.125, 0.12, 0.13)):
        def record(slug, tokens_per_s, kl, **sections):
            throughput = {"output_tokens_per_s": tokens_per_s}
            ttft = {"p50": 0.1, "p90": 0.2, "p99": None, "mean": 0.1, "count": 50}
            values = {"quality": make_quality(kl), "latency": {"ttft_s": ttft}} | sections
            return make_run(f"f.{slug}", stage="select", throughput=throughput, **values)

        table = make_table(
            record("composed", 400.0, kls[0]),
            record(
                "without-a",
                200.0,
                kls[1],
                comparison=compared(
                    output_tokens_per_s=(0.5, 0.4, 0.6, "worse"), ttft_s=(2.0, 1.5, 2.5, "worse")
                ),
            ),
            record(
                "without-b",
                380.0,
                kls[2],
                comparison=compared(output_tokens_per_s=(0.95, 0.9, 1.1, "undecided")),
            ),
            record(
                "unoptimized",
                50.0,
                0.0,
                comparison=compared(output_tokens_per_s=(*whole, "worse")),
            ),
            with_reference=False,
        )
        return {row["slug"].removeprefix("f."): row for row in rows_of(table)}, table

    return make


def effects(rows):
    return ablation(rows["composed"], {"a": rows["without-a"], "b": rows["without-b"]})


def test_the_worth_is_how_many_times_better_the_composition_is_whatever_the_direction(rows):
    found = effects_of(effects(rows()[0]), "a")
    speed = found["throughput.output_tokens_per_s"]
    assert (speed.worth, speed.low, speed.high) == pytest.approx((2.0, 1 / 0.6, 2.5))
    assert (speed.composed, speed.without, speed.verdict) == (400.0, 200.0, "better")
    ttft = found["latency.ttft_s.p50"]  # lower is better: twice the time without it
    assert (ttft.worth, ttft.verdict, ttft.label) == (2.0, "better", "TTFT p50 (ms)")
    assert ttft.composed == pytest.approx(100.0)
    undecided = effects_of(effects(rows()[0]), "b")["throughput.output_tokens_per_s"]
    assert undecided.verdict == "undecided"


def test_a_loss_of_quality_is_worse_and_equal_numbers_are_equal(rows):
    kl = effects_of(effects(rows()[0]), "a")["quality.kl_mean"]
    assert (kl.composed, kl.without, kl.worth, kl.verdict) == (0.03, 0.01, None, "worse")
    same = effects_of(effects(rows((0.03, 0.03, 0.03))[0]), "a")["quality.kl_mean"]
    assert same.verdict == "equal"


def test_a_run_that_was_paired_with_another_reference_has_no_worth(rows):
    found, _ = rows()
    row = {**found["without-a"], "comparison.output_tokens_per_s.reference": "f.other"}
    effect = ablation(found["composed"], {"a": row})[0]
    assert (effect.worth, effect.verdict) == (None, "undecided")


@pytest.mark.parametrize(
    ("whole", "verdict", "words"),
    [
        # 8x in all: without one, which is worth 2x, the others still gain 4x.
        ((0.125, 0.12, 0.13), "more", "they overlap"),
        # 1.11x in all: without one, which is worth 2x, the others make it slower than nothing.
        ((0.9, 0.85, 0.95), "less", "they need each other"),
        ((0.475, 0.3, 0.6), "undecided", "cannot tell"),
    ],
)
def test_the_composition_is_held_against_the_product_of_its_parts(rows, whole, verdict, words):
    found, _ = rows(whole=whole)
    speed, quality = interactions(found["composed"], found["unoptimized"], effects(found))
    assert speed.verdict == verdict
    assert words in speed.message
    assert speed.expected == pytest.approx(2 / 0.95)
    assert speed.observed == pytest.approx(1 / whole[0])
    assert speed.low < speed.observed / speed.expected < speed.high
    assert quality.column == "quality.kl_mean"


@pytest.mark.parametrize(
    ("kls", "verdict"),
    [
        ((0.03, 0.01, 0.005), "more"),  # 0.01 and 0.005 alone, 0.03 together
        ((0.03, 0.02, 0.02), "less"),
        ((0.03, 0.02, 0.01), "undecided"),
    ],
)
def test_quality_below_the_sum_of_the_parts_is_flagged(rows, kls, verdict):
    """By hand: the losses inside the composition are KL(all) - KL(all but one)."""
    found, _ = rows(kls)
    quality = interactions(found["composed"], found["unoptimized"], effects(found))[-1]
    assert quality.verdict == verdict
    assert quality.expected == pytest.approx((kls[0] - kls[1]) + (kls[0] - kls[2]))


def test_one_technique_has_nothing_to_interact_with(rows):
    found, _ = rows()
    alone = ablation(found["composed"], {"a": found["without-a"]})
    assert interactions(found["composed"], found["unoptimized"], alone) == ()


def test_the_front_leaves_out_what_some_run_lacks_and_names_its_knee(rows):
    _, table = rows()
    front = front_of(table, ("kl_mean", "throughput", "j_per_request"))
    assert front.axes == ("kl_mean", "throughput")
    assert front.left_out == {"j_per_request": "j_per_request was not measured"}
    assert set(front.runs) == {f"select/f.{n}" for n in ("composed", "without-b", "unoptimized")}
    assert front.dominated == {"select/f.without-a": "dominated by select/f.without-b"}
    assert front.knee == "select/f.without-b"  # nearly the speed, a sixth of the loss
    assert 0 < front.hypervolume <= 1


def test_one_run_that_lacks_an_axis_has_no_part_and_the_axis_stays(rows):
    """Pins: a single finalist without quality took the quality of all others off the front."""
    _, table = rows()
    table.loc[table["slug"] == "f.without-b", "quality.kl_mean"] = None
    front = front_of(table, ("kl_mean", "throughput"))
    assert front.axes == ("kl_mean", "throughput")
    assert front.excluded == {"select/f.without-b": "kl_mean was not measured"}
    assert "select/f.without-b" not in {*front.runs, *front.dominated}
    assert set(front.runs) == {f"select/f.{n}" for n in ("composed", "without-a", "unoptimized")}
    table.loc[table["slug"] != "f.composed", "quality.kl_mean"] = None
    alone = front_of(table, ("kl_mean", "throughput"))
    assert alone.axes == ("throughput",), "three of four lack it: then the axis goes, not they"
    assert (alone.excluded, set(alone.left_out)) == ({}, {"kl_mean"})


def test_a_knee_needs_rows_and_an_axis_with_a_range(rows):
    _, table = rows()
    axes = get_objectives(["kl_mean"])
    assert knee_of([], axes) is None
    assert knee_of(rows_of(table), axes) == "select/f.unoptimized"


def test_a_derived_energy_takes_no_part_unless_asked(rows):
    _, table = rows()
    table["energy.j_per_request"], table["energy.source"] = 1.0, "modelled"
    axes = ("throughput", "j_per_request")
    assert "modelled" in front_of(table, axes).left_out["j_per_request"]
    assert front_of(table, axes, include_modelled_energy=True).axes == axes
