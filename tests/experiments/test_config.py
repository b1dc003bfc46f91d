"""The configuration: defaults, checks before anything runs, and documentation that agrees."""

import re
from pathlib import Path

import pytest
import yaml

from infopt.errors import ConfigError
from infopt.experiments.config import (
    complete_config,
    load_config,
    settings_markdown,
    settings_table,
)

ROOT = Path(__file__).parents[2]
SCHEMA_PATH = ROOT / "workflow" / "schemas" / "config.schema.yaml"


def test_the_default_file_says_what_the_schema_says(schema):
    assert load_config(ROOT / "config" / "config.yaml", SCHEMA_PATH) == complete_config({}, schema)


def test_the_default_file_spells_out_every_setting(schema):
    """A key that is missing in the file would be changed by nobody who reads it."""
    written = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    assert set(written) == set(schema["properties"])
    for key in ("baseline", "select", "time_budget_s", "notebooks"):
        assert set(written[key]) == set(schema["properties"][key]["properties"]), key


@pytest.mark.parametrize("name", ["config", "gpu", "ci"])
def test_shipped_configurations_are_valid(name):
    load_config(ROOT / "config" / f"{name}.yaml", SCHEMA_PATH)


def test_the_readme_lists_every_key_with_its_default(schema):
    text = (ROOT / "config" / "README.md").read_text()
    found = re.search(r"<!-- settings -->\n(.*)\n<!-- /settings -->", text, re.DOTALL)
    assert found
    assert found[1] == settings_markdown(schema)


def test_every_key_has_a_description_and_all_but_entries_a_default(schema):
    rows = settings_table(schema)
    assert len(rows) > 40
    assert all(description for _, _, description in rows)
    needed = {
        "slug",
        "workload",
        "candidates",
        "batches",
    }  # of entries that have no meaning without them
    without = {key for key, default, _ in rows if default == "-"}
    assert {key.rsplit(".", 1)[-1] for key in without} == needed


BAD = [
    ({"seedz": 1}, "seedz", "Did you mean 'seed'?"),
    ({"select": {"objektive": "x"}}, "objektive", "Did you mean 'objective'?"),
    ({"batching": {"page_size": {"enginee": {}}}}, "enginee", "Did you mean 'engine'?"),
    ({"engine": {"block_sizes": 3}}, "engine.block_sizes", "Did you mean 'block_size'?"),
    ({"engine": {"block_size": 0}}, "engine.block_size", "got 0"),
    ({"engine": {"model": "x"}}, "engine.model", "set once"),
    ({"workloads": {"x": {"kind": "synthetc"}}}, "workloads.x", "Did you mean 'synthetic'?"),
    (
        {"workloads": {"x": {"kind": "summarize", "num_request": 2}}},
        "num_request",
        "Did you mean 'num_requests'?",
    ),
    (
        {"workloads": {"steady": {"kind": "synthetic", "num_requests": 2}}},
        "workloads.steady.prompt_tokens",
        "prompt_tokens",
    ),
    ({"slo": "chatt"}, "slo", "Did you mean 'chat'?"),
    ({"slo": {"ttft": 1}}, "slo", "Did you mean 'ttft_s'?"),
    ({"quality_floor": "lossi"}, "quality_floor", "Did you mean 'lossy'?"),
    ({"repeats": 0}, "repeats", "minimum of 1"),
    ({"repeats": "six"}, "repeats", "not of type"),
    ({"batching": {}}, "batching", "non-empty"),
    ({"batching": {"new": {"workload": "steady"}}}, "batching.new.candidates", "required"),
    ({"batching": {"Page": {}}}, "batching", "does not match"),
    (
        {"batching": {"scheduling": {"reference": "stati"}}},
        "batching.scheduling.reference",
        "Did you mean 'static'?",
    ),
    (
        {"batching": {"scheduling": {"workload": "steddy"}}},
        "batching.scheduling.workload",
        "Did you mean 'steady'?",
    ),
    ({"power": {"thread": {}}}, "thread", "Did you mean 'threads'?"),
    ({"power": {"threads": {"workload": "steddy"}}}, "power.threads.workload", "'steady'"),
    ({"power": {"caps": {"caps_w": []}}}, "power.caps", "not valid"),
    (
        {"power": {"cold_start": {"candidates": [{"slug": "a"}, {"slug": "a"}]}}},
        "power.cold_start.candidates",
        "two candidates are called 'a'",
    ),
    ({"prices": {"machine": {"currency": "EUR", "per_hour": 1}}}, "prices", "date"),
    ({"prices": {"maschine": None}}, "maschine", "Did you mean 'machine'?"),
    ({"select": {"objective": "godput"}}, "select.objective", "Did you mean 'goodput'?"),
    (
        {"baseline": {"candidates": [{"slug": "a"}, {"slug": "a"}], "reference": "a"}},
        "baseline.candidates",
        "two candidates are called 'a'",
    ),
    (
        {"baseline": {"candidates": [{"slug": "a", "engine": {"dtyp": 1}}], "reference": "a"}},
        "baseline.candidates.a.dtyp",
        "Did you mean 'dtype'?",
    ),
]


@pytest.mark.parametrize(("bad", "field", "text"), BAD, ids=[f for _, f, _ in BAD])
def test_a_broken_configuration_is_named(schema, bad, field, text):
    """Pins: a misspelt or dead key passed validation and the default ran without a word."""
    with pytest.raises(ConfigError) as error:
        complete_config(bad, schema)
    assert error.value.field == field
    assert text in str(error.value)


def test_options_that_contradict_each_other_once_combined_are_found(schema):
    with pytest.raises(ConfigError, match="smaller than max_num_seqs"):
        complete_config({"engine": {"max_num_seqs": 128}}, schema)  # with a budget of 64 tokens


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"a: [", "cannot be read"),
        (b"- 1", "must be a mapping"),
        (b"0", "must be a mapping"),
        (b"seed: \xff", "cannot be read"),
        (
            b"prices: {utilisation: 0.5, machine: null, utilisation: 1.0}",
            "'utilisation' is there twice",
        ),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, text, match):
    path = tmp_path / "broken.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=match):
        load_config(path, SCHEMA_PATH)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        load_config(tmp_path / "none.yaml", SCHEMA_PATH)


def test_listed_questions_are_the_ones_that_run(schema):
    config = complete_config({"batching": {"page_size": {"repeats": 3}}}, schema)
    assert list(config["batching"]) == ["page_size"]
    page_size = config["batching"]["page_size"]
    assert page_size["repeats"] == 3
    assert page_size["workload"] == "odd_lengths"  # the rest of the default entry stays


def test_lists_workloads_and_the_objective_are_replaced_whole(schema):
    candidates = [{"slug": "only", "engine": {"block_size": 32}}]
    config = complete_config(
        {
            "slo": {"e2e_s": 2},
            "workloads": {"steady": {"kind": "summarize", "num_requests": 3}},
            "batching": {"page_size": {"candidates": candidates, "reference": "only"}},
        },
        schema,
    )
    assert config["slo"] == {"e2e_s": 2}
    assert config["workloads"]["steady"] == {"kind": "summarize", "num_requests": 3}
    assert "serving" in config["workloads"]
    assert config["batching"]["page_size"]["candidates"] == candidates


def test_completing_leaves_the_arguments_alone(schema):
    given = {"engine": {"dtype": "float32"}}
    complete_config(given, schema)["engine"]["block_size"] = 1
    assert given == {"engine": {"dtype": "float32"}}
    assert "block_size" not in complete_config({}, schema)["engine"]


def test_caps_are_changed_only_where_they_are_listed(schema):
    assert "caps" not in complete_config({}, schema)["power"]
    found = complete_config({"power": {"caps": {"caps_w": [300]}}}, schema)
    assert list(found["power"]) == ["caps"]
    assert found["power"]["caps"]["clocks_mhz"] == []


def test_days_of_prices_may_be_bare_in_yaml(schema, tmp_path):
    """YAML makes a date of a bare day, which no JSON of a job can hold."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "prices: {machine: {currency: EUR, per_hour: 1, date: 2026-11-01, source: invoice}}"
    )
    assert load_config(path, SCHEMA_PATH)["prices"]["machine"]["date"] == "2026-11-01"
