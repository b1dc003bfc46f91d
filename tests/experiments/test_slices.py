"""Running a slice: records that survive, failures that are told, nothing measured twice."""

import dataclasses
import json
import logging

import pytest

from infopt.errors import CapacityError, MeasurementError
from infopt.experiments import slices
from infopt.experiments.arms import Arm
from infopt.experiments.devices import Device
from infopt.experiments.slices import SliceRun, run_slice, write_manifest
from infopt.results import RunRecord, load_results, record_path


@pytest.fixture(autouse=True)
def on_this_machine(fixed_machine, tmp_path, monkeypatch):
    """Locks of its own, so that a measurement elsewhere does not hold up the tests."""
    monkeypatch.setattr("infopt.experiments.devices._default_lock_dir", lambda: tmp_path / "locks")


@pytest.fixture
def loaded(monkeypatch):
    """Names of the arms that were loaded, in order."""
    names = []
    original = Arm.__init__

    def counting(self, slug, *args, **options):
        names.append(slug)
        original(self, slug, *args, **options)

    monkeypatch.setattr(Arm, "__init__", counting)
    return names


def read(tmp_path, slug, stage="batching"):
    return RunRecord.read(record_path(stage, slug, tmp_path))


def test_every_candidate_has_a_record_and_the_others_a_paired_ratio(tmp_path, make_spec, caplog):
    caplog.set_level(logging.INFO)
    spec = make_spec()
    manifest = run_slice(spec, tmp_path, num_threads=1)
    assert manifest["records"] == ["page_size.page-16", "page_size.page-8"]
    assert manifest["reference"] == "page-16"
    assert manifest["num_resumed"] == 0
    reference, candidate = read(tmp_path, "page_size.page-16"), read(tmp_path, "page_size.page-8")
    assert reference.status == candidate.status == "ok"
    assert reference.comparison is None
    ratio = candidate.comparison["output_tokens_per_s"]
    assert ratio["reference"] == "page_size.page-16"
    assert ratio["num_pairs"] == 2
    assert ratio["verdict"] == "undecided"  # two pairs prove nothing
    assert set(candidate.comparison) >= {"ttft_s", "tpot_s", "e2e_s"}
    for record in (reference, candidate):
        assert record.throughput["num_requests"] == 2 * spec.repeats  # warm-up left out
        assert record.throughput["num_output_tokens"] == 2 * spec.repeats * 3
        assert len(record.samples["output_tokens_per_s"]) == spec.repeats
        assert record.config["num_threads"] == 1
        assert record.extra["device"] == "cpu"
        assert record.duration_s > 0
    assert reference.config["block_size"] == 16
    assert candidate.config["block_size"] == 8
    assert "page-8: " in caplog.text


def test_waste_is_counted_from_the_pages(tmp_path, make_spec):
    """12 prompt tokens and 3 more fill pages of 8 better than pages of 16."""
    run_slice(make_spec(), tmp_path)
    waste = {
        slug: read(tmp_path, f"page_size.{slug}").memory["kv_waste_share"]
        for slug in ("page-16", "page-8")
    }
    assert 0 < waste["page-8"] <= waste["page-16"] < 0.3


def test_a_finished_slice_loads_nothing_again(tmp_path, make_spec, loaded):
    run_slice(make_spec(), tmp_path)
    loaded.clear()
    manifest = run_slice(make_spec(), tmp_path)
    assert loaded == []
    assert manifest["num_resumed"] == 2


def test_a_killed_slice_keeps_what_was_finished(tmp_path, make_spec, loaded, monkeypatch):
    """Pins: hours of results were deleted with the half-done job they belonged to."""
    candidates = {f"page-{n}": {"block_size": n} for n in (16, 8, 4)}
    original = slices._measure_candidate

    def die_at_third(run, reference, slug):
        if slug == "page-4":
            raise KeyboardInterrupt  # what a signal does to the process
        original(run, reference, slug)

    monkeypatch.setattr(slices, "_measure_candidate", die_at_third)
    with pytest.raises(KeyboardInterrupt):
        run_slice(make_spec(candidates=candidates), tmp_path)
    assert sorted(p.name for p in (tmp_path / "runs" / "batching").iterdir()) == [
        "page_size.page-16.json",
        "page_size.page-8.json",
    ]
    monkeypatch.setattr(slices, "_measure_candidate", original)
    loaded.clear()
    manifest = run_slice(make_spec(candidates=candidates), tmp_path)
    assert loaded == ["page-16", "page-4"]  # the reference once more, to pair with
    assert manifest["num_resumed"] == 2
    assert len(manifest["records"]) == 3


def test_a_failed_candidate_leaves_a_record_and_the_others_still_run(tmp_path, make_spec):
    """Pins: a crashed run became an empty file that looked like a result."""
    candidates = {
        "page-16": {"block_size": 16},
        "no-room": {"num_kv_pages": 1, "block_size": 8},
        "page-8": {"block_size": 8},
    }
    with pytest.raises(MeasurementError, match=r"1 of 3 .* failed: page_size\.no-room") as error:
        run_slice(make_spec(candidates=candidates), tmp_path)
    assert error.value.value == ["no-room"]
    failed = read(tmp_path, "page_size.no-room")
    assert failed.status == "failed"
    assert failed.throughput is None
    assert failed.failure["type"] == "MeasurementError"
    assert "2 failed of 2 requests" in failed.failure["message"]
    assert read(tmp_path, "page_size.page-8").status == "ok"
    assert read(tmp_path, "page_size.page-16").status == "ok"
    table = load_results(tmp_path)
    assert list(table["status"]).count("failed") == 1


def test_a_weight_format_that_the_model_lacks_is_left_out(tmp_path, make_spec):
    """The default pipeline asks for Q4_1 blocks, and other models must still get through it."""
    formats = {"plain": {}, "blocks": {"quantization": "q4_1"}}
    spec = dataclasses.replace(make_spec(), candidates=formats, reference="plain")
    manifest = run_slice(spec, tmp_path)
    assert [name.rsplit(".", 1)[1] for name in manifest["records"]] == ["plain"]
    assert list(manifest["candidates"]) == ["plain"]
    assert "has none" in manifest["left_out"]["blocks"]


def test_the_next_attempt_retries_only_what_failed(tmp_path, make_spec, loaded, monkeypatch):
    broken = {"on": True}
    original = Arm.run

    def run(self):
        if broken["on"] and self.slug == "page-8":
            raise CapacityError("no room", field="pool", remedy="a larger pool")
        return original(self)

    monkeypatch.setattr(Arm, "run", run)
    with pytest.raises(MeasurementError, match="no room"):
        run_slice(make_spec(), tmp_path)
    failed = read(tmp_path, "page_size.page-8")
    assert failed.failure == {
        "type": "CapacityError",
        "message": "no room",
        "field": "pool",
        "remedy": "a larger pool",
    }
    broken["on"] = False
    loaded.clear()
    manifest = run_slice(make_spec(), tmp_path)
    assert loaded == ["page-16", "page-8"]
    assert manifest["num_resumed"] == 1
    assert read(tmp_path, "page_size.page-8").status == "ok"


def test_without_a_reference_every_record_says_why(tmp_path, make_spec):
    spec = make_spec(shared={"max_model_len": 10**6})
    with pytest.raises(MeasurementError, match="2 of 2 runs"):
        run_slice(spec, tmp_path)
    for slug in ("page_size.page-16", "page_size.page-8"):
        assert read(tmp_path, slug).failure["field"] == "max_model_len"


@pytest.mark.parametrize(
    "change",
    [
        {"repeats": 3},
        {"seeds": (1,)},
        {"base": {"max_model_len": 96, "num_kv_pages": 64, "dtype": "float32"}},
        {"load": "open"},
        {"criterion": "ttft_p50"},
    ],
    ids=["repeats", "seed", "engine", "load", "criterion"],
)
def test_another_measurement_has_another_identity(tmp_path, make_spec, change):
    """What `finished_record` compares holds everything that decides the numbers."""
    device = Device(None)
    first, second = (
        SliceRun(spec, tmp_path, device, 1).identity("page-8")
        for spec in (make_spec(), make_spec(**change))
    )
    assert first != second
    assert first == SliceRun(make_spec(), tmp_path, device, 1).identity("page-8")


def test_another_number_of_threads_is_measured_again(tmp_path, make_spec):
    spec = make_spec(candidates={"page-16": {"block_size": 16}}, repeats=1)
    run_slice(spec, tmp_path, num_threads=1)
    assert run_slice(spec, tmp_path, num_threads=1)["num_resumed"] == 1
    assert run_slice(spec, tmp_path, num_threads=2)["num_resumed"] == 0


def test_a_slice_without_rivals_measures_its_only_candidate(tmp_path, make_spec):
    spec = make_spec(candidates={"page-16": {"block_size": 16}})
    manifest = run_slice(spec, tmp_path)
    assert manifest["records"] == ["page_size.page-16"]
    assert len(read(tmp_path, "page_size.page-16").samples["output_tokens_per_s"]) == 2


def test_a_slice_without_candidates_is_an_empty_manifest(tmp_path, make_spec):
    manifest = run_slice(make_spec(candidates={}, reference=""), tmp_path)
    assert manifest["records"] == []


def test_repeats_go_through_the_seeds_in_step(tmp_path, make_spec, monkeypatch):
    served = []
    original = Arm.run

    def run(self):
        served.append((self.slug, len(self.results) % len(self.requests)))
        return original(self)

    monkeypatch.setattr(Arm, "run", run)
    run_slice(make_spec(seeds=(5, 6), repeats=2), tmp_path)
    rounds = [sorted(served[i : i + 2]) for i in range(0, len(served), 2)]
    assert all(first[1] == second[1] for first, second in rounds)  # both arms, same requests
    assert read(tmp_path, "page_size.page-8").seeds == (5, 6)


def test_the_manifest_is_complete_or_absent(tmp_path, make_spec):
    path = tmp_path / "slices" / "page_size.json"
    write_manifest(run_slice(make_spec(), tmp_path), path)
    assert json.loads(path.read_text())["slice"] == "page_size"
    assert [p.name for p in path.parent.iterdir()] == ["page_size.json"]
