"""How much of the objective a slice depends on, in its measurement and in its choice."""

from __future__ import annotations

import json

import pytest

from infopt.experiments.judging import limits_of, measured
from infopt.experiments.select_spec import select_spec
from infopt.experiments.spec import slice_names, slice_spec

STAGES = ("baseline", "batching", "quantization", "kv_cache", "speculative", "moe", "power")


def texts(config, *, of_jobs):
    """Return the specifications of all slices, as the jobs or as the choices see them."""
    specs = [slice_spec(config, s, name) for s in STAGES for name in slice_names(config, s)]
    return {
        f"{spec.stage}/{spec.name}": (measured(spec) if of_jobs else spec).to_json()
        for spec in specs
    }


def changed(before, after):
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("slo", "judged_anew"),
    [
        ({"ttft_s": 9, "tpot_s": 0.1, "percentile": 90}, {"batching/token_budget"}),
        ({"ttft_s": 0.3, "tpot_s": 9, "percentile": 90}, {"batching/token_budget"}),
        ({"ttft_s": 0.3, "tpot_s": 0.1, "e2e_s": 5, "percentile": 90}, set()),
        ("chat", {"batching/token_budget"}),
    ],
)
def test_another_objective_measures_nothing_again_before_the_load_is_searched(
    config, slo, judged_anew
):
    """Pins: slices with a limit on their choice were measured again for every other limit."""
    config["slo"] = {"ttft_s": 0.3, "tpot_s": 0.1, "percentile": 90}
    before = [texts(config, of_jobs=of_jobs) for of_jobs in (True, False)]
    config["slo"] = slo
    after = [texts(config, of_jobs=of_jobs) for of_jobs in (True, False)]
    assert changed(before[0], after[0]) == set()
    assert changed(before[1], after[1]) == judged_anew


def test_what_is_loaded_for_the_objective_depends_on_all_of_it(config):
    config["slo"] = {"ttft_s": 0.3, "percentile": 90}
    specs = [slice_spec(config, "serving", "load")]
    specs += [select_spec(config, name) for name in ("capacity", "finalists", "validation")]
    for spec in specs:
        assert measured(spec).slo == config["slo"], spec.name


def test_goodput_as_a_criterion_needs_the_objective(config):
    config["batching"]["scheduling"]["criterion"] = "goodput"
    assert measured(slice_spec(config, "batching", "scheduling")).slo == config["slo"]
    assert measured(slice_spec(config, "batching", "page_size")).slo == {}


def test_what_only_decides_is_no_part_of_the_measurement(config):
    before = texts(config, of_jobs=True)
    entry = config["batching"]["page_size"]
    entry |= {"prefers": "page-64", "decides": False, "slo_limits": ["ttft_s"]}
    assert changed(before, texts(config, of_jobs=True)) == set()
    assert "page-64" in json.loads(texts(config, of_jobs=False)["batching/page_size"])["prefers"]


def test_limits_that_the_objective_does_not_have_are_none(config):
    config["slo"] = {"e2e_s": 5.0}
    spec = slice_spec(config, "batching", "token_budget")  # held to ttft_s and tpot_s
    assert (spec.slo, limits_of(spec)) == ({}, None)
    config["slo"] = {"e2e_s": 5.0, "tpot_s": 0.1}
    found = limits_of(slice_spec(config, "batching", "token_budget"))
    assert found is not None and found.limits == {"tpot_s": 0.1}
