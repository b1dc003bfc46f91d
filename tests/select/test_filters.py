from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infopt.bench.slo import SLO
from infopt.config import EngineConfig
from infopt.errors import ConfigError
from infopt.select import QualityFloor, check_slo, filter_runs, get_floor, inherit_quality
from infopt.select.quality import SCHEDULING_OPTIONS

Make = Callable[..., Any]
P90 = SLO(ttft_s=0.2, percentile=90)


def reasons(table: Any, **options: Any) -> dict[str, str]:
    arguments = {"slo": None, "floor": None} | options
    marked = filter_runs(table, **arguments)
    assert list(marked["feasible"]) == [not r for r in marked["reasons"]]
    return dict(zip(marked["slug"], marked["reasons"], strict=True))


def test_a_missed_limit_says_by_how_much(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    table = make_table(
        make_run("fast", **make_served(2, 0.2)), make_run("slow", **make_served(9, 0.31))
    )
    found = reasons(table, slo=P90)
    assert found["fast"] == ""
    assert found["slow"] == "TTFT p90 is 310 ms, the limit is 200 ms (+55 %)"


def test_a_percentile_that_was_not_measured_is_not_kept(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    """p99 of 50 requests does not exist; leaving the check out would let any run pass."""
    table = make_table(make_run("a", **make_served(2)), make_run("b"))
    found = reasons(table, slo=SLO(ttft_s=0.2))
    assert found["a"] == "TTFT p99 was not measured (50 samples are too few)"
    assert found["b"] == "TTFT p99 was not measured"


def test_other_percentiles_come_from_the_runs_own_verdict() -> None:
    row = {"slo.attained.ttft_s": 0.3, "slo.limits.percentile": 95.0}
    slo = SLO(ttft_s=0.2, percentile=95)
    assert check_slo(row, slo)[0].excess == pytest.approx(0.5)
    assert check_slo(row | {"slo.attained.ttft_s": 0.1}, slo) == []
    other = check_slo(row | {"slo.attained.ttft_s": 0.1, "slo.limits.percentile": 75.0}, slo)
    assert other[0].value is None and other[0].excess == float("inf")
    # Pins: it was said that the samples were too few.
    kept = "records keep p50, p90, p99 and that of their own objective, not p95"
    assert other[0].message == f"TTFT at its percentile was not measured ({kept})"


def test_requests_that_did_not_complete_count(
    make_table: Make, make_run: Make, make_served: Make
) -> None:
    """Percentiles of the completed requests alone make a server look good that drops the rest."""
    few, many = make_served(2), make_served(2)
    few["throughput"] = {"num_requests": 50, "num_completed": 45}
    many["throughput"] = {"num_requests": 50, "num_completed": 44}
    found = reasons(make_table(make_run("few", **few), make_run("many", **many)), slo=P90)
    assert found["few"] == ""
    assert "6 of 50 requests did not complete" in found["many"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"kl": 0.02, "ratio": 1.02, "code": 0.65}, ""),
        ({"kl": 0.03}, "Mean KL to the reference is 0.03 nats, the limit is 0.02 nats (+50 %)"),
        (
            {"kl": 0.0200049},
            "Mean KL to the reference is 0.020005 nats, the limit is 0.02 nats (+0.0245 %)",
        ),
        (
            {"kl": 2.0},
            "Mean KL to the reference is 2 nats, the limit is 0.02 nats (+9900 %)",
        ),
        ({"kl": None}, "Mean KL to the reference was not measured"),
        ({"ratio": 1.05}, "Perplexity on docs is 1.05 x reference"),
        ({"code": 0.64}, "Task code: score 0.64 is below 0.65"),
        ({"tasks": {}}, "Score in code was not measured"),
    ],
)
def test_the_quality_floor(
    make_table: Make, make_run: Make, make_quality: Make, changes: dict[str, Any], expected: str
) -> None:
    table = make_table(make_run("a", quality=make_quality(**changes)))
    found = reasons(table, floor=get_floor("default"))
    assert found["float32"] == ""
    assert found["a"].startswith(expected) if expected else found["a"] == ""


def test_quality_that_was_not_measured_is_not_good(make_table: Make, make_run: Make) -> None:
    found = reasons(make_table(make_run("a", quality=None)), floor=get_floor("default"))
    assert found["a"] == "Quality not measured"


def test_other_protocols_are_not_compared(
    make_table: Make, make_run: Make, make_quality: Make
) -> None:
    full, items = make_quality(), make_quality()
    full["protocol"] = full["protocol"] | {"tier": "full"}
    items["protocol"] = items["protocol"] | {"tasks": {"code": "80 items", "passkey": "4 items"}}
    found = reasons(
        make_table(make_run("full", quality=full), make_run("items", quality=items)),
        floor=get_floor("default"),
    )
    assert "No reference run has the protocol 'full'" in found["full"]
    assert "other items than the reference's" in found["items"]


def test_the_lossy_floor_lets_more_through(
    make_table: Make, make_run: Make, make_quality: Make
) -> None:
    table = make_table(make_run("a", quality=make_quality(kl=0.09, ratio=1.09)))
    assert reasons(table, floor=get_floor("default"))["a"]
    assert reasons(table, floor=get_floor("lossy"))["a"] == ""
    strict = get_floor({"max_kl": 0.5, "max_perplexity_ratio": 1.0})
    assert "Perplexity" in reasons(table, floor=strict)["a"]


def test_floors_are_checked() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'lossy'"):
        get_floor("losy")
    with pytest.raises(ConfigError, match="Did you mean 'max_kl'"):
        get_floor({"max_lk": 1})
    with pytest.raises(ConfigError, match="max_kl"):
        QualityFloor(max_kl=float("nan"))
    with pytest.raises(ConfigError, match="max_kl must be a finite"):
        QualityFloor(max_kl=float("inf"))  # no recommendation could be written with it
    with pytest.raises(ConfigError, match="check_tasks"):
        get_floor({"check_tasks": "no"})  # as text it would be a yes
    with pytest.raises(ConfigError, match="mapping"):
        get_floor(0.5)  # type: ignore[arg-type]


def test_failed_and_foreign_runs_are_never_feasible(make_table: Make, make_run: Make) -> None:
    failure = {"type": "E", "message": "out of memory", "field": None, "remedy": None}
    table = make_table(
        make_run("f", status="failed", failure=failure, quality=None),
        make_run("peer", config=None),
    )
    found = reasons(table)
    assert found["f"] == "The run failed: out of memory"
    assert "Another engine ran" in found["peer"]


def invariant(is_it: bool) -> dict[str, Any]:
    return {"ops": {"backends": {}, "batch_invariant": is_it}}


def test_quality_is_inherited_only_where_the_same_tokens_are_computed(
    make_table: Make, make_run: Make, make_quality: Make
) -> None:
    same, good = {"quality": None, **invariant(True)}, {**invariant(True)}
    table = inherit_quality(
        make_table(
            make_run("source", quality=make_quality(kl=0.011), **good),
            make_run("batch", config={"max_num_seqs": 8, "scheduling": "static"}, **same),
            make_run("dtype", config={"dtype": "bfloat16"}, **same),
            make_run("quant", config={"quantization": "q4_1"}, **same),
            make_run("variant", quality=None, **invariant(False)),
        )
    ).set_index("slug")
    assert table.loc["batch", "quality.kl_mean"] == 0.011
    assert table.loc["batch", "quality.inherited_from"] == "batching/source"
    inherited = table["quality.inherited_from"].dropna()
    assert dict(inherited) == {"batch": "batching/source"}
    found = reasons(table.reset_index(), floor=get_floor("default"))
    assert found["batch"] == "" and found["quant"] == "Quality not measured"


def test_the_suite_goes_before_the_protocol_of_a_stage(
    make_table: Make, make_run: Make, make_quality: Make
) -> None:
    """What keys and values lose is judged behind long prompts, which no reference run reads."""
    long = make_quality(kl=0.02)
    long["protocol"] = {**long["protocol"], "tier": "long"}
    table = inherit_quality(
        make_table(
            make_run("behind-long-prompts", quality=long, **invariant(True)),
            make_run("suite", quality=make_quality(kl=0.011), **invariant(True)),
            make_run("batch", config={"max_num_seqs": 8}, quality=None, **invariant(True)),
        )
    ).set_index("slug")
    assert table.loc["batch", "quality.inherited_from"] == "batching/suite"
    assert table.loc["batch", "quality.kl_mean"] == 0.011


def test_options_of_scheduling_exist() -> None:
    assert set(EngineConfig.field_names()) >= SCHEDULING_OPTIONS


def test_inheritance_without_invariance_must_be_asked_for(make_table: Make, make_run: Make) -> None:
    table = make_table(
        make_run("source", **invariant(False)),
        make_run("batch", config={"max_num_seqs": 8}, quality=None, **invariant(False)),
    )
    assert list(inherit_quality(table)["quality.inherited_from"].dropna()) == []
    accepted = inherit_quality(table, require_batch_invariance=False).set_index("slug")
    assert accepted.loc["batch", "quality.inherited_from"] == "batching/source"


def test_what_computes_the_same_as_the_reference_has_no_distance_from_it(
    make_table: Make, make_run: Make
) -> None:
    """The reference has no KL of its own; inheriting that gap once made equal runs infeasible."""
    options = {"dtype": "float32", "max_num_seqs": 8}
    table = inherit_quality(
        make_table(make_run("a", config=options, quality=None)), require_batch_invariance=False
    )
    assert reasons(table, floor=get_floor("default")) == {"float32": "", "a": ""}
    row = table.set_index("slug").loc["a"]
    assert row["quality.kl_mean"] == 0.0
    assert row["quality.inherited_from"] == "baseline/float32"
