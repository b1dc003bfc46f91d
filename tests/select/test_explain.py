"""`infopt.select.explain`: sentences about hand-made records whose answer is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from infopt.errors import ConfigError
from infopt.results import RunRecord, flatten_record
from infopt.select import add_explanations, explain_record

Make = Callable[..., RunRecord]


def work(
    weights: float, predicted_s: float, measured_s: float, *, flops: float = 1e12
) -> dict[str, Any]:
    """Roofline section of a run that is bound by weights."""
    return {
        "bytes": weights + 1e9,
        "weight_bytes": weights,
        "kv_bytes": 1e9,
        "flops": flops,
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "regime": "weight-bandwidth",
        "mbu": predicted_s / measured_s,
        "mfu": 0.1,
    }


def against(median: float, verdict: str = "better") -> dict[str, Any]:
    ratio = {"median": median, "low": median * 0.95, "high": median * 1.05, "num_pairs": 8}
    return {"output_tokens_per_s": ratio | {"verdict": verdict, "reference": "ref"}}


@pytest.fixture
def reference(make_run: Make) -> RunRecord:
    return make_run("ref", roofline=work(200e9, 4.0, 5.0), extra={"num_steps": 100})


def test_half_the_bytes_explain_twice_the_speed(make_run: Make, reference: RunRecord) -> None:
    run = make_run(
        "fast",
        roofline=work(100e9, 2.0, 3.0),
        comparison=against(1.8),
        extra={"num_steps": 100},
    )
    found = explain_record(run, reference)
    assert (found.status, found.reference) == ("explained", "batching/ref")
    assert (found.measured_ratio, found.predicted_ratio) == (1.8, 2.0)
    assert found.slowdown == 1.5
    assert found.sentences == (
        "Its steps had to move 101 GB and compute 1 TFLOP, which takes 2 s at least; they took "
        "3 s, 1.5 times that.",
        "The limit is reading weights (weight-bandwidth).",
        "It won against batching/ref: 1.8 [1.71, 1.89] times its output throughput.",
        "It takes 0.5 times the weight bytes: that predicts 2 times the speed.",
    )


def test_the_number_of_steps_is_named_where_it_changed(
    make_run: Make, reference: RunRecord
) -> None:
    run = make_run(
        "fewer", roofline=work(100e9, 2.0, 3.0), comparison=against(1.8), extra={"num_steps": 50}
    )
    assert "in 50 instead of 100 steps" in explain_record(run, reference).text


@pytest.mark.parametrize(
    ("predicted_s", "measured", "verdict", "status"),
    [
        (2.0, 1.61, "better", "explained"),  # 2 / 1.61 is just within 1.25
        (2.0, 1.59, "better", "unexplained"),
        (4.0, 1.15, "better", "unexplained"),  # equal work predicts no difference
        (3.8, 0.95, "worse", "unexplained"),  # near, but on the other side of 1
        (4.0, 1.01, "undecided", "undecided"),
        (2.0, 1.01, "undecided", "unexplained"),  # a gain was predicted and did not come
        (8.0, 0.5, "worse", "explained"),
    ],
)
def test_prediction_and_measurement_have_to_agree(
    make_run: Make,
    reference: RunRecord,
    predicted_s: float,
    measured: float,
    verdict: str,
    status: str,
) -> None:
    run = make_run(
        "a",
        roofline=work(50e9 * predicted_s, predicted_s, 5.0),
        comparison=against(measured, verdict),
    )
    found = explain_record(run, reference)
    assert found.status == status
    assert ("Unexplained" in found.text) == (status == "unexplained")


def test_the_rest_is_said_with_the_shares_of_both_bounds(
    make_run: Make, reference: RunRecord
) -> None:
    run = make_run("a", roofline=work(200e9, 4.0, 4.0), comparison=against(1.5))
    text = explain_record(run, reference).text
    assert "The counted work is equal, so it predicts no difference." in text
    assert "differ by x 1.5 (explained is within x 1.25" in text
    assert "it reached 100 % of its bound, the reference 80 %" in text


def test_the_factor_can_be_stated(make_run: Make, reference: RunRecord) -> None:
    run = make_run("a", roofline=work(100e9, 2.0, 3.0), comparison=against(1.2))
    assert explain_record(run, reference).status == "unexplained"
    assert explain_record(run, reference, within=2).status == "explained"
    with pytest.raises(ConfigError, match="within"):
        explain_record(run, reference, within=1.0)


def test_at_a_given_load_steps_are_compared(make_run: Make, reference: RunRecord) -> None:
    run = make_run(
        "open",
        throughput={"offered_requests_per_s": 2.0},
        roofline=work(100e9, 2.0, 2.5),
        comparison=against(1.0, "undecided"),
    )
    found = explain_record(run, reference)
    assert (found.measured_ratio, found.is_paired, found.status) == (2.0, False, "explained")
    assert "not measured in pairs" in found.text


@pytest.mark.parametrize("section", [None, {"bytes": 1e9, "flops": 1e9, "measured_s": 1.0}])
def test_without_a_prediction_nothing_is_claimed(
    make_run: Make, reference: RunRecord, section: dict[str, Any] | None
) -> None:
    run = make_run("a", roofline=section, comparison=against(2.0))
    found = explain_record(run, reference)
    assert (found.status, found.predicted_ratio) == ("alone", None)
    assert "their difference is unexplained" in found.text


def test_a_reference_and_a_missing_reference(make_run: Make, reference: RunRecord) -> None:
    assert "compared with nothing" in explain_record(reference).text
    run = make_run("a", roofline=work(1e9, 1.0, 1.0), comparison=against(2.0))
    assert "The record of its reference batching/ref is not there." in explain_record(run).text


def test_a_failed_run(make_run: Make) -> None:
    failure = {"type": "CapacityError", "message": "too long", "field": None, "remedy": None}
    run = make_run("a", status="failed", failure=failure)
    assert explain_record(run).sentences[0] == "The run failed: too long"


def test_the_column_finds_the_reference_of_the_same_machine(
    make_run: Make, reference: RunRecord
) -> None:
    run = make_run("a", roofline=work(100e9, 2.0, 3.0), comparison=against(1.8))
    other = {"hardware": {"hardware_id": "m2"}}
    elsewhere = make_run("ref", roofline=work(1e9, 0.1, 0.1), **other)
    lonely = make_run("b", roofline=work(1e9, 0.1, 0.1), comparison=against(1.8))
    lonely = lonely.replace(hardware={"hardware_id": "m3"})
    rows = [flatten_record(r) for r in (elsewhere, reference, run, lonely)]
    table = add_explanations(pd.DataFrame(rows))
    assert list(table["explanation.status"]) == ["alone", "alone", "explained", "alone"]
    assert table["explanation.predicted_ratio"][2] == 2.0
    assert "is not there" in table["explanation"][3]
