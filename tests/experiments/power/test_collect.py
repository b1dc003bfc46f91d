"""What the stage hands on, and costs that follow prices without measuring again."""

from __future__ import annotations

import os

import pytest

from infopt.experiments.costs import price_records
from infopt.experiments.power.collect import choose_power, power_table
from infopt.experiments.power.stage import with_fleets
from infopt.experiments.yaml_files import read_yaml
from infopt.results import RunRecord, read_json, read_table, record_path

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
SLICES = ("threads", "cold_start")


def manifests(folder):
    return [read_json(folder / "slices" / f"{name}.json") for name in SLICES]


def test_the_choice_is_in_the_form_that_later_stages_read(measured):
    chosen = read_yaml(measured / "chosen" / "power.yaml")
    assert chosen["stage"] == "power"
    assert set(chosen["engine"]) <= {"num_threads"}
    threads = chosen["slices"]["threads"]
    assert threads["decides"]
    assert threads["reference_engine"] == {}
    assert not chosen["slices"]["cold_start"]["decides"]
    assert chosen["prices"]["machine"]["source"] == "made up for this test"


def test_two_pairs_choose_nothing_but_the_whole_machine(measured):
    """Fewer than six pairs never give a verdict, so the default stays."""
    assert read_yaml(measured / "chosen" / "power.yaml")["engine"] == {}


def test_a_skipped_slice_has_its_reason_and_no_row(make_power_spec):
    spec = make_power_spec("threads")
    skipped = {"slice": "threads", "records": [], "candidates": {}, "skipped": "one core"}
    table = power_table([{**skipped, "stage": "power"}], "nowhere")
    chosen = choose_power(table, [skipped], [spec])
    assert table.empty
    assert chosen["engine"] == {}
    assert chosen["slices"]["threads"]["status"] == "skipped"
    assert chosen["slices"]["threads"]["reason"] == "one core"


def test_costs_are_filled_and_a_part_of_the_machine_costs_a_part(measured):
    table = read_table(measured / "tables" / "power.parquet").set_index("slug")
    hours = table["cost.per_machine_hour"]
    assert hours["threads.threads-2"] == pytest.approx(0.4)
    assert hours["threads.threads-1"] == pytest.approx(0.2)
    rate = table["throughput.output_tokens_per_s"]["threads.threads-1"]
    expected = 0.2 * 1e6 / (3600 * rate)
    assert table["cost.per_million_output_tokens"]["threads.threads-1"] == pytest.approx(expected)


def test_a_changed_price_changes_the_cost_alone(measured, tmp_path):
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(measured, folder)
    path = record_path("power", "threads.threads-2", folder)
    before = RunRecord.read(path)
    assert price_records(manifests(folder), folder, {}) == 3
    after = RunRecord.read(path)
    assert after.cost["per_request"] is None
    assert "prices.machine" in after.cost["reason"]
    assert after.replace(cost=before.cost) == before
    assert price_records(manifests(folder), folder, {}) == 0  # nothing to write
    assert price_records(manifests(folder), folder, None) == 0


def test_chosen_threads_limit_later_jobs(make_power_spec):
    spec = with_fleets(make_power_spec("threads"), 2).inherit({"num_threads": 1})
    assert spec.engine_config(spec.reference, num_threads=2).num_threads == 1
    assert make_power_spec("cold_start").engine_config("none", num_threads=2).num_threads == 2
