"""`infopt bench` on a small random model: what is counted, never how fast it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infopt import load_results
from infopt.bench.roofline import MachinePeaks
from infopt.cli import bench_arms
from infopt.results import RunRecord

SMALL = ["--num-requests", "3", "-s", "prompt_tokens=8", "-s", "output_tokens=5", "--repeats", "2"]


@pytest.fixture(autouse=True)
def known_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the seconds that measuring this machine takes."""
    peaks = MachinePeaks(bytes_per_s=1e10, flops_per_s=1e11)
    monkeypatch.setattr(bench_arms, "machine_peaks", lambda _: peaks)


def test_one_configuration_gives_a_table(run_cli: Any, tiny: list[str]) -> None:
    output = run_cli("bench", *tiny, *SMALL).output
    assert "synthetic: 3 requests, 2 rounds" in output
    assert "default" in output
    assert "ratio" not in output
    assert "objective chat" in output
    assert "memory bandwidth" in output


def test_json_is_a_checked_record(run_cli: Any, tiny: list[str]) -> None:
    result = run_cli("bench", *tiny, *SMALL, "--max-num-seqs", "2", "--json")
    record = RunRecord.from_dict(json.loads(result.stdout))
    assert record.run == "bench/arm=default"
    assert record.config is not None
    assert record.config["max_num_seqs"] == 2
    assert record.throughput is not None
    assert record.throughput["num_output_tokens"] == 2 * 3 * 5  # warm-up round left out
    assert record.latency is not None
    assert record.latency["ttft_s"]["count"] == 6
    assert record.comparison is None
    assert record.ops is not None
    assert record.ops["batch_invariant"] is True
    assert record.roofline is not None
    assert record.roofline["bandwidth_bytes_per_s"] == 1e10


def test_arms_are_compared_with_the_first_and_saved(
    run_cli: Any, tiny: list[str], tmp_path: Path
) -> None:
    arms = ["--arm", "one=max_num_seqs=1", "--arm", "two=max_num_seqs=2,block_size=4"]
    result = run_cli("bench", *tiny, *SMALL, *arms, "--save", str(tmp_path))
    assert "reference" in result.stdout
    assert "2 pairs decide nothing" in result.stderr
    rows: dict[Any, Any] = load_results(tmp_path).set_index("slug").to_dict("index")
    assert [rows[f"arm={name}"]["config.max_num_seqs"] for name in ("one", "two")] == [1, 2]
    column = "comparison.output_tokens_per_s"
    assert rows["arm=two"][f"{column}.reference"] == "arm=one"
    assert rows["arm=two"][f"{column}.num_pairs"] == 2
    assert rows["arm=two"][f"{column}.verdict"] == "undecided"


def test_rate_makes_the_load_open(run_cli: Any, tiny: list[str]) -> None:
    result = run_cli("bench", *tiny, *SMALL, "--rate", "200", "--json")
    record = json.loads(result.stdout)
    assert record["identity"]["workload"]["load"] == "open"
    assert record["identity"]["workload"]["arrivals"] == {"kind": "poisson", "rate": 200.0}
    assert record["throughput"]["offered_requests_per_s"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--workload", "sinthetic"), ("sinthetic", "synthetic")),
        (("-s", "promt_tokens=3"), ("promt_tokens", "prompt_tokens")),
        (("-s", "prompt_tokens=600"), ("512", "600")),
        (("--num-kv-pages", "1", "-s", "prompt_tokens=40"), ("KV pool",)),
    ],
)
def test_faults_are_named(
    run_cli: Any, tiny: list[str], options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    output = run_cli("bench", *tiny, *SMALL[:2], *options, ok=False).output
    for word in words:
        assert word in output
