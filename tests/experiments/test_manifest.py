"""The manifest of a slice: whose records, when, and on what."""

from datetime import datetime

from infopt.experiments.devices import Device
from infopt.experiments.manifest import Job, measuring_job, utc_now
from infopt.experiments.spec import SliceSpec


def spec() -> SliceSpec:
    return SliceSpec(
        stage="batching",
        name="page_size",
        model="random",
        base={},
        shared={},
        candidates={"a": {"block_size": 8}, "b": {"block_size": 16}},
        reference="a",
        workloads={"load": {"kind": "synthetic", "num_requests": 1}},
        slo={},
    )


def test_a_manifest_names_what_was_measured_and_no_more():
    found = Job(Device("3", 1.23456)).manifest(
        spec(), ["page_size.b"], ["b"], num_resumed=1, left_out={"a": "no such format"}
    )
    assert found["records"] == ["page_size.b"]
    assert found["candidates"] == {"b": {"block_size": 16}}
    assert (found["stage"], found["slice"], found["reference"]) == ("batching", "page_size", "a")
    assert (found["device"], found["waited_s"]) == ("gpu-3", 1.235)
    assert found["num_resumed"] == 1 and found["left_out"] == {"a": "no such format"}


def test_times_are_those_of_the_device():
    before = utc_now()
    with measuring_job() as job:
        assert not job.ended
    after = utc_now()
    found = job.manifest(spec(), [], [])
    assert before <= found["started"] <= found["ended"] <= after
    assert datetime.fromisoformat(found["started"]).tzinfo is not None
    assert found["duration_s"] >= 0
