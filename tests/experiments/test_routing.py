"""The probe that routes: what it adds to the record of the cheap model, and what is refused."""

from __future__ import annotations

import pytest

from infopt.errors import ConfigError
from infopt.experiments import moe
from infopt.experiments.config import complete_config
from infopt.experiments.measures import RoutingOptions
from infopt.experiments.random_model import write_random_model
from infopt.experiments.routing import Routing
from infopt.experiments.spec import slice_spec
from infopt.results import RunRecord, record_path

OPTIONS = {
    "items": {"arithmetic": 14, "multilingual": 14},
    "policies": ["random", "classifier", "perplexity", "cascade-margin"],
    "test_share": 0.5,
}


@pytest.fixture(autouse=True)
def on_this_machine(fixed_machine, tmp_path, monkeypatch):
    monkeypatch.setattr("infopt.experiments.devices._default_lock_dir", lambda: tmp_path / "locks")


@pytest.fixture
def routed(tmp_path, make_spec):
    """Records of a slice whose models have tokenizers of their own."""
    spec = make_spec(
        stage="moe",
        name="routing",
        model=str(write_random_model(tmp_path / "model")),
        reference="strong",
        base={"max_model_len": 512, "num_kv_pages": 160, "dtype": "float32"},
        candidates={"strong": {}, "cheap": {"model": "tiny-draft"}},
        repeats=1,
        options={"routing": OPTIONS},
    )
    moe.run(spec, tmp_path)
    names = ("strong", "cheap")
    paths = [record_path("moe", spec.record_slug(name), tmp_path) for name in names]
    return dict(zip(names, map(RunRecord.read, paths), strict=True))


def test_the_record_of_the_cheap_model_holds_the_curves(routed):
    record, extra = routed["cheap"], routed["cheap"].extra
    assert not any(name.startswith("routing") for name in routed["strong"].extra)
    assert extra["routing_train"] + extra["routing_test"] == 28
    assert extra["routing_left_out"] == 0
    for kind in OPTIONS["policies"]:
        shares = record.samples[f"routing.{kind}.share"]
        assert (shares[0], shares[-1]) == (0.0, 1.0)
        seconds = record.samples[f"routing.{kind}.seconds"]
        assert all(s > 0 for s in seconds)
        assert extra[f"routing_{kind}_verdict"] in ("better", "worse", "undecided")
    assert abs(extra["routing_random_lift"]) < 0.3


def test_items_are_those_that_both_models_answered(routed):
    samples, extra = routed["cheap"].samples, routed["cheap"].extra
    tasks = samples["routing_items.task"]
    assert (tasks.count(0), tasks.count(1)) == (14, 14)
    for model in ("cheap", "strong"):
        values = samples[f"routing_items.{model}_quality"]
        assert set(values) <= {0.0, 1.0}
        assert extra[f"ab_all_{model}"] == pytest.approx(sum(values) / 28)
        inside = [v for v, task in zip(values, tasks, strict=True) if task == 1]
        assert extra[f"ab_multilingual_{model}"] == pytest.approx(sum(inside) / 14)
    assert extra["ab_all_difference"] == pytest.approx(
        extra["ab_all_cheap"] - extra["ab_all_strong"]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": {}}, "numbers of items"),
        ({"items": {"arithmetic": 0}}, "whole number"),
        ({"policies": []}, "policies is empty"),
        ({"test_share": 1.0}, "between 0 and 1"),
        ({"test_share": "half"}, "between 0 and 1"),
    ],
)
def test_impossible_options_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        RoutingOptions(**(OPTIONS | changes))


def test_a_task_that_writes_has_no_choices(tmp_path):
    probe = Routing(OPTIONS | {"items": {"arithmetic_generate": 5}}, 0)
    with pytest.raises(ConfigError, match="not one of choosing"):
        probe._ask(None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": {"arithmetik": 5}}, "Did you mean 'arithmetic'"),
        ({"policies": ["cascades"]}, "Did you mean 'cascade'"),
        ({"shares": 1}, "shares"),
    ],
)
def test_the_configuration_is_checked_before_anything_runs(schema, config, changes, message):
    entry = config["moe"]["routing"] | {"routing": OPTIONS | changes}
    with pytest.raises(ConfigError, match=message):
        complete_config({"moe": {"routing": entry}}, schema)


def test_only_a_slice_that_routes_or_has_a_model_names_models(schema, config):
    spec = slice_spec(config, "moe", "routing")
    assert spec.engine_config("cheap").model == "tiny-dense"
    assert spec.engine_config("strong").model == config["model"]
    assert not spec.decides
    entry = config["moe"]["routing"] | {"routing": None}
    with pytest.raises(ConfigError, match="or routes"):
        complete_config({"moe": {"routing": entry}}, schema)
