"""`infopt bench serve` against infopt's own server: what is counted, never how fast it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SMALL = ["--num-requests", "5", "-s", "prompt_tokens=8", "-s", "output_tokens=4"]
EASY = ["--slo", "e2e_s=60"]


def test_one_rate_gives_a_table(run_cli: Any, server_url: str) -> None:
    output = run_cli("bench", "serve", server_url, *SMALL, *EASY, "--rate", "100").stdout
    assert f"tiny at {server_url}" in output
    assert "goodput" in output
    assert "objective: e2e_s <= 60" in output
    assert "prompts: ids, tokenizer: server; output tokens asked 20, got 20" in output
    assert "saturation" not in output


def test_sweep_is_written_with_every_request(run_cli: Any, server_url: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    args = ["--url", f"{server_url}/v1", *SMALL, *EASY, "--rates", "50,100", "-o", str(path)]
    result = run_cli("bench", "serve", *args, "--warmup", "1", "--endpoint", "chat")
    assert "100% of requests kept" not in result.stdout
    assert "kept the objective up to 100 requests/s, the highest rate tried" in result.stdout
    document = json.loads(path.read_text())
    assert document["model"] == "tiny"
    assert [run["rate_per_s"] for run in document["runs"]] == [50, 100]
    assert [run["num_warmup"] for run in document["runs"]] == [1, 1]
    assert document["sweep"]["saturation"]["status"] == "above"
    requests = document["runs"][0]["requests"]
    assert [r["status"] for r in requests] == ["completed"] * 5
    assert all(r["ttft_s"] <= r["e2e_s"] and r["num_output_tokens"] == 4 for r in requests)
    other = document["runs"][1]["requests"]
    assert [r["arrival_s"] for r in requests] != [r["arrival_s"] for r in other]


def test_json_and_load_options(run_cli: Any, server_url: str) -> None:
    options = ["--arrivals", "burst", "--burst-size", "2", "--max-concurrency", "1"]
    options += ["--seed", "5", "--prompt", "text", "--extra", "top_k=1", "--duration", "0.05"]
    result = run_cli("bench", "serve", server_url, *SMALL, *options, "--rate", "100", "--json")
    run = json.loads(result.stdout)["runs"][0]
    assert [round(r["arrival_s"], 6) for r in run["requests"]] == [0, 0, 0.02, 0.02, 0.04, 0.04]
    assert run["client"]["max_concurrency"] == 1
    assert run["client"]["prompt_form"] == "text"
    assert run["transport"] == "http"


def test_a_trace_is_replayed_whole(run_cli: Any, server_url: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"2024-01-01 00:00:00.{i:02},5,2" for i in range(40)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    run = json.loads(
        run_cli("bench", "serve", server_url, "--trace", str(path), *EASY, "--json").stdout
    )["runs"][0]
    assert (run["rate_per_s"], run["num_completed"], run["num_output_tokens"]) == (None, 40, 80)


def test_tokenizer_of_a_local_model(run_cli: Any, server_url: str, tiny: list[str]) -> None:
    args = [*SMALL, "--rate", "100", "--tokenizer", tiny[1], "--respect-eos"]
    assert "tokenizer: given" in run_cli("bench", "serve", server_url, *args).stdout


def test_failed_requests_are_told(run_cli: Any, server_url: str) -> None:
    args = [*SMALL, "--rate", "100", "--warmup", "0", "--extra", "topk=1"]
    output = run_cli("bench", "serve", server_url, *args, ok=False).output
    assert "failed: 5 x HTTP 400; the first: HTTP 400:" in output
    assert "None of 5 requests was answered" in output
    assert "0%" in output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("--rate",)),
        (("--rate", "1", "--rates", "1,2"), ("--rate",)),
        (("--rates", "2,1"), ("must rise",)),
        (("--rate", "x"), ("--rate",)),
        (("--rate", "1", "--cv", "2"), ("--cv", "gamma")),
        (("--rate", "1", "--arrivals", "gamma"), ("--cv", "gamma")),
        (("--rate", "1", "--refine", "1"), ("--refine", "--rates")),
        (("--rate", "1", "--warmup", "-1"), ("warmup", "-1")),
        (("--rate", "1", "-s", "promt_tokens=3"), ("promt_tokens", "prompt_tokens")),
        (("--rate", "1", "--model", "tny"), ("tny", "tiny")),
        (("--rate", "1", "--trace", "x.csv"), ("x.csv",)),
        (("--trace", "x.csv", "--arrivals", "poisson"), ("own arrivals",)),
        (("--rate", "1", "--url", "http://b"), ("address", "once")),
        (("--rate", "1", "--slo", "chatt"), ("chatt", "chat")),
    ],
)
def test_faults_are_named(
    run_cli: Any, server_url: str, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    output = run_cli("bench", "serve", server_url, *options, ok=False).output
    for word in words:
        assert word in output


def test_nobody_is_there(run_cli: Any) -> None:
    output = run_cli("bench", "serve", "http://127.0.0.1:9", "--rate", "1", ok=False).output
    assert "cannot be reached" in output
    assert "infopt serve" in output


def test_options_of_bench_are_refused_in_front(run_cli: Any) -> None:
    """They would be ignored, and a load one did not ask for measured."""
    output = run_cli("bench", "--num-requests", "3", "serve", "http://a", ok=False).output
    assert "--num-requests stands before 'serve'" in output
