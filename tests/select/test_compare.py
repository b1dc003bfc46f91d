"""`infopt.select.compare`: what counts as worse, what is never compared, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infopt.errors import ConfigError, ResultError
from infopt.results import RunRecord
from infopt.select import NothingComparableError, OtherMachineError, compare_results
from infopt.select.changes import KL_NOISE_NATS, ratio_interval
from infopt.select.compare import ComparisonReport

Make = Callable[..., RunRecord]
ENDS = ("low", "high")


def speed(value: float, spread: float = 0.01, count: int = 6) -> dict[str, Any]:
    """Sections with one throughput and its interval."""
    ends = {"low": value * (1 - spread), "high": value * (1 + spread)}
    column = "throughput.output_tokens_per_s"
    return {
        "throughput": {"output_tokens_per_s": value},
        "intervals": {column: {"estimate": value, **ends, "count": count}},
    }


def gain(median: float, reference: str = "none", num_pairs: int = 6) -> dict[str, Any]:
    ratio = {"median": median, "low": median * 0.99, "high": median * 1.01, "verdict": "better"}
    return {"output_tokens_per_s": ratio | {"num_pairs": num_pairs, "reference": reference}}


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., ComparisonReport]:
    """Write two folders of records and compare them."""

    def compare(before: list[RunRecord], after: list[RunRecord], **options: Any) -> Any:
        for name, records in (("a", before), ("b", after)):
            for record in records:
                record.write(tmp_path / name)
        return compare_results(tmp_path / "a", tmp_path / "b", **options)

    return compare


def verdicts(report: ComparisonReport) -> dict[str, str]:
    return {c.metric: c.verdict for run in report.runs for c in run.changes}


@pytest.mark.parametrize(
    ("after", "spread", "verdict", "is_regression"),
    [
        (90, 0.01, "worse", True),
        (97, 0.01, "worse", False),  # for sure, but within the tolerance
        (90, 0.20, "undecided", False),  # far, but not for sure
        (110, 0.01, "better", False),
        (100, 0.01, "undecided", False),
    ],
)
def test_a_regression_is_sure_and_beyond_the_tolerance(
    make_run: Make, compared: Any, after: float, spread: float, verdict: str, is_regression: bool
) -> None:
    report = compared(
        [make_run("a", **speed(100, spread))], [make_run("a", **speed(after, spread))]
    )
    assert verdicts(report)["throughput.output_tokens_per_s"] == verdict
    assert bool(report.regressions) == is_regression


def test_lower_is_better_for_latencies(make_run: Make, compared: Any) -> None:
    def slow(value: float) -> RunRecord:
        ends = {"estimate": value, "low": value * 0.99, "high": value * 1.01, "count": 6}
        return make_run("a", intervals={"latency.tpot_s.p50": ends}, quality=None)

    assert verdicts(compared([slow(0.01)], [slow(0.02)])) == {"latency.tpot_s.p50": "worse"}


def test_few_repeats_decide_nothing(make_run: Make, compared: Any) -> None:
    report = compared(
        [make_run("a", quality=None, **speed(100))],
        [make_run("a", quality=None, **speed(10, count=5))],
    )
    (change,) = report.runs[0].changes
    assert (change.verdict, change.note) == ("undecided", "fewer than 6 repeats")


def test_the_interval_combines_both() -> None:
    # Equal spreads s on the log scale add up to s * sqrt(2).
    spread = math.exp(0.1)
    low, high = ratio_interval((2, 2 / spread, 2 * spread), (6, 6 / spread, 6 * spread))
    assert low == pytest.approx(3 * math.exp(-0.1 * math.sqrt(2)))
    assert high == pytest.approx(3 * math.exp(0.1 * math.sqrt(2)))
    assert ratio_interval((2, 2, 2), (6, 5, 7)) == pytest.approx((2.5, 3.5))


def test_a_slower_machine_leaves_the_gain_as_it_was(make_run: Make, compared: Any) -> None:
    before = make_run("a", **speed(100), comparison=gain(1.5))
    after = make_run("a", **speed(50), comparison=gain(1.5))
    found = verdicts(compared([before], [after]))
    assert found["throughput.output_tokens_per_s"] == "worse"
    assert found["comparison.output_tokens_per_s"] == "undecided"


def test_a_lost_gain_is_a_regression(make_run: Make, compared: Any) -> None:
    runs = [make_run("a", comparison=gain(g)) for g in (1.5, 1.2)]
    assert compared([runs[0]], [runs[1]]).regressions == [
        "batching/a: Output throughput against none x 0.8"
    ]


def test_gains_over_other_references_are_not_compared(make_run: Make, compared: Any) -> None:
    runs = [make_run("a", comparison=gain(1.5, name)) for name in ("none", "static")]
    assert "comparison.output_tokens_per_s" not in verdicts(compared([runs[0]], [runs[1]]))


def test_quality_is_exact_under_one_protocol(
    make_run: Make, make_quality: Callable[..., dict[str, Any]], compared: Any
) -> None:
    before = make_run("a", quality=make_quality(kl=0.001, ratio=1.0))
    after = make_run("a", quality=make_quality(kl=0.01, ratio=1.1))
    found = verdicts(compared([before], [after]))
    assert found["quality.kl_mean"] == "worse"
    assert found["quality.perplexity.docs"] == "worse"
    assert found["quality.tasks.code.score"] == "undecided"


def test_tiny_divergences_are_equal(
    make_run: Make, make_quality: Callable[..., dict[str, Any]], compared: Any
) -> None:
    runs = [make_run("a", quality=make_quality(kl=kl)) for kl in (-1e-7, 0.9 * KL_NOISE_NATS)]
    assert verdicts(compared([runs[0]], [runs[1]]))["quality.kl_mean"] == "undecided"


def test_other_protocols_are_never_compared(
    make_run: Make, make_quality: Callable[..., dict[str, Any]], compared: Any
) -> None:
    other = make_quality(kl=0.5)
    other = other | {"protocol": other["protocol"] | {"tier": "full"}}
    report = compared([make_run("a", **speed(9))], [make_run("a", quality=other, **speed(9))])
    assert not any(metric.startswith("quality.") for metric in verdicts(report))
    assert report.runs[0].notes == ("another quality protocol: tier 'screen' and 'full'",)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"config": {"max_num_seqs": 3}}, "another configuration: max_num_seqs"),
        ({"workload": {"load": "open"}}, "another workload: load 'closed' and 'open'"),
        (
            {"workload": {"load": "closed", "load_workload": {"num_requests": 4}}},
            "another workload",
        ),
        ({"seeds": (1,)}, "another seeds: seeds [0] and [1]"),
    ],
)
def test_other_runs_are_never_compared(
    make_run: Make, compared: Any, change: dict[str, Any], reason: str
) -> None:
    shared = {"workload": {"load": "closed"}, **speed(100)}
    before = [make_run("a", **shared), make_run("b", **shared)]
    after = [make_run("a", **(shared | change)), make_run("b", **shared)]
    report = compared(before, after)
    assert [run.run for run in report.runs] == ["batching/b"]
    assert report.unpaired[0].run == "batching/a"
    assert report.unpaired[0].reason.startswith(reason)


def test_nothing_in_common_is_an_error(make_run: Make, compared: Any) -> None:
    with pytest.raises(NothingComparableError, match="only in A"):
        compared([make_run("a")], [make_run("b")])


def test_machines_are_not_mixed_silently(make_run: Make, compared: Any) -> None:
    before = make_run("a", **speed(100))
    after = make_run("a", hardware={"hardware_id": "m2"}, **speed(50))
    with pytest.raises(OtherMachineError, match="m1 and on m2") as error:
        compared([before], [after])
    assert "--allow-other-machine" in str(error.value.remedy)
    report = compared([before], [after], allow_other_machine=True)
    assert not report.runs[0].is_same_machine
    assert report.identities["after"]["machines"] == ["m2"]


def test_a_run_that_fails_now_is_a_regression(make_run: Make, compared: Any) -> None:
    failure = {"type": "CapacityError", "message": "too long", "field": None, "remedy": None}
    broken = make_run("a", status="failed", failure=failure, quality=None)
    fine = make_run("a", **speed(100))
    report = compared([fine], [broken])
    assert report.regressions == ["batching/a: fails now"]
    assert report.runs[0].notes == ("CapacityError: too long",)
    repaired = compare_swapped(compared, broken, fine)
    assert (repaired.regressions, repaired.runs[0].failure) == ([], "works now")


def compare_swapped(compared: Any, before: RunRecord, after: RunRecord) -> ComparisonReport:
    return compared([before], [after])


def test_the_drift_of_the_machine_is_said(make_run: Make, compared: Any) -> None:
    def run(slug: str, rate: float) -> RunRecord:
        return make_run(slug, roofline={"bandwidth_bytes_per_s": rate, "flops_per_s": None})

    before = [run(slug, 40e9) for slug in "abc"] + [make_run("d")]
    after = [run("a", 20e9), run("b", 36e9), run("c", 80e9), make_run("d")]
    assert compared(before, after).drift == pytest.approx({"memory": 0.9})


def test_derived_energy_decides_nothing(make_run: Make, compared: Any) -> None:
    def run(value: float) -> RunRecord:
        ends = {"estimate": value, "low": value, "high": value, "count": 6}
        energy = {
            "j_per_token": value,
            "j_per_request": None,
            "source": "modelled",
            "derived": True,
            "reason": None,
            **{f"j_per_{unit}_{end}": None for unit in ("token", "request") for end in ENDS},
        }
        return make_run("a", quality=None, energy=energy, intervals={"energy.j_per_token": ends})

    (change,) = compared([run(1.0)], [run(2.0)]).runs[0].changes
    assert change.verdict == "undecided"
    assert change.note.startswith("derived")


def test_the_same_run_twice_is_refused(make_run: Make, tmp_path: Path) -> None:
    make_run("a").write(tmp_path / "a")
    make_run("a").write(tmp_path / "b")
    with pytest.raises(ResultError, match="twice"):
        compare_results([tmp_path / "a", tmp_path / "b"], tmp_path / "a")


def test_a_negative_tolerance_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tolerance"):
        compare_results(tmp_path, tmp_path, tolerance=-0.1)
