"""Stage `power`: which candidates a machine has, what their records say, and what is skipped."""

from __future__ import annotations

import os

import pytest

from infopt.errors import MeasurementError
from infopt.experiments.power import stage
from infopt.experiments.power.skipping import SkippedError
from infopt.results import RunRecord, record_path

TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def read(slug, folder) -> RunRecord:
    return RunRecord.read(record_path("power", slug, folder))


@pytest.mark.parametrize(
    ("counts", "num_cores", "threads"),
    [
        (None, 2, [1, 2]),
        (None, 6, [1, 2, 4, 6]),
        (None, 8, [1, 2, 4, 8]),
        ([3, 16], 8, [3, 8]),
    ],
)
def test_sizes_are_powers_of_two_and_the_whole(make_power_spec, counts, num_cores, threads):
    spec = stage.with_fleets(make_power_spec("threads", options={"counts": counts}), num_cores)
    assert list(spec.candidates) == [f"threads-{n}" for n in threads]
    assert spec.reference == f"threads-{num_cores}"
    assert spec.candidates[spec.reference] == {}  # the default is all of them
    assert spec.candidates[f"threads-{threads[0]}"] == {"num_threads": threads[0]}


def test_replicas_divide_the_cores_and_hand_on_nothing(make_power_spec):
    spec = stage.with_fleets(make_power_spec("replicas", options={"counts": [2, 4, 16]}), 8)
    assert spec.options["fleets"] == {
        "1x8-threads": [8],
        "2x4-threads": [4, 4],
        "4x2-threads": [2, 2, 2, 2],
    }
    assert set(map(str, spec.candidates.values())) == {"{}"}


@pytest.mark.parametrize("name", ["threads", "replicas"])
def test_one_core_has_nothing_to_divide_and_says_so(make_power_spec, tmp_path, name):
    found = stage.run(make_power_spec(name), tmp_path, num_threads=1)
    assert found["records"] == []
    assert "nothing to divide" in found["skipped"]


def test_a_gpu_does_not_follow_the_threads_of_the_cpu(make_power_spec):
    spec = make_power_spec("threads", base={"device": "cuda"})
    with pytest.raises(SkippedError, match="GPU"):
        stage.with_fleets(spec, 8)


@TWO_CORES
def test_records_hold_speed_energy_and_who_used_it(measured):
    small, whole = (read(f"threads.threads-{n}", measured) for n in (1, 2))
    assert (small.config or {})["num_threads"] == 1
    assert small.extra["machine_share"] == 0.5
    assert whole.extra["machine_share"] == 1.0
    comparison = (small.comparison or {})["output_tokens_per_s"]
    assert comparison["reference"] == "threads.threads-2"
    assert comparison["num_pairs"] == 2
    for record in (small, whole):
        samples = record.samples or {}
        assert samples["requests.prompt_tokens"] == [12.0] * 4
        used = sum(samples["requests.prefill_j"]) + sum(samples["requests.decode_j"])
        assert 0 < used < record.energy["joules"]
        assert record.energy["derived"]
        assert record.energy["j_per_token_low"] < record.energy["j_per_token_high"]
        assert record.latency is not None
        assert record.extra["decode_s_per_token"] > 0


@TWO_CORES
def test_replicas_share_requests_and_their_energy_is_the_machines(make_power_spec, tmp_path):
    spec = make_power_spec("replicas", repeats=1)
    found = stage.run(spec, tmp_path, num_threads=2)
    assert found["records"] == ["replicas.1x2-threads", "replicas.2x1-threads"]
    record = read("replicas.2x1-threads", tmp_path)
    assert record.extra["num_instances"] == 2
    assert record.extra["threads_per_instance"] == 1
    assert (record.throughput or {})["num_completed"] == 4  # two each, and none twice
    assert len((record.samples or {})["requests.prefill_j"]) == 4
    # both cores are reserved until the last one ends
    reserved = record.energy["idle_core_s_per_token"] * 16
    assert reserved == pytest.approx(2 * record.energy["measured_s"], rel=1e-6)
    again = stage.run(spec, tmp_path, num_threads=2)
    assert again["num_resumed"] == 2  # nothing is measured twice


@TWO_CORES
def test_a_start_is_measured_to_the_first_token(measured):
    record = read("cold_start.none", measured)
    extra = record.extra
    assert 0 < extra["ready_s"] < extra["cold_start_s"]
    assert extra["weights_bytes"] > 0
    assert extra["hold_s"] == pytest.approx(extra["start_j"] / extra["warm_watts"])
    assert extra["break_even_per_s"] == pytest.approx(1 / extra["hold_s"])
    for name in ("start_j", "warm_watts", "hold_s", "break_even_per_s"):
        assert extra[f"{name}_low"] < extra[name] < extra[f"{name}_high"]
    assert (record.intervals or {})["extra.cold_start_s"]["count"] == 1  # the first does not count


def test_a_format_that_the_model_does_not_come_in_is_left_out(make_power_spec, tmp_path):
    formats = {"q4_1": {"quantization": "q4_1"}}
    spec = make_power_spec("cold_start", candidates=formats, reference="q4_1")
    found = stage.run(spec, tmp_path, num_threads=1)
    assert found["records"] == []
    assert "q4_1" in found["left_out"]["q4_1"]


def test_a_process_that_fails_says_why(make_power_spec, tmp_path):
    base = {"max_model_len": 8, "num_kv_pages": 8, "dtype": "float32", "device": "cpu"}
    spec = make_power_spec("cold_start", base=base)  # no room for a prompt of twelve tokens
    with pytest.raises(MeasurementError, match=r"none: none: 1 failed of 1 requests"):
        stage.run(spec, tmp_path, num_threads=1)
