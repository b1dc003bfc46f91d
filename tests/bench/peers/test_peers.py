"""Workers in processes of their own, turns, and the table; engines are imitated by a script."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from infopt.bench.peers.__main__ import chosen, compare, measure
from infopt.bench.peers.arms import ARMS, Site
from infopt.bench.peers.quality import compare as divergence
from infopt.bench.peers.table import best_ratios, show, to_markdown
from infopt.bench.peers.worker import Worker
from infopt.errors import MeasurementError

SCRIPT = """
import sys, time

class Engine:
    def __init__(self, options):
        print("loading")  # must not be taken for an answer
        if options.get("fails"):
            raise RuntimeError("no such file")
        self.step_s = options["step_s"]

    def decode(self, prompts, num_tokens):
        if num_tokens == 14:
            sys.exit(3)
        time.sleep(0.01 * len(prompts) + self.step_s * (num_tokens - 1))

    def logits(self, ids):
        return [[float(i == j) for j in range(4)] for i in ids] if len(ids) > 1 else None
"""


@pytest.fixture
def start(tmp_path: Path):
    """Start an imitated engine that takes ``step_s`` per decode step."""
    workers: list[Worker] = []
    script = tmp_path / "worker.py"
    script.write_text(SCRIPT)

    def make(name: str = "fake", step_s: float = 0.002, **options: Any) -> Worker:
        values = {"step_s": step_s} | options
        worker = Worker(name, sys.executable, str(script), values, tmp_path / f"{name}.log")
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        worker.close()


def test_a_worker_reports_reading_and_decoding_apart(start):
    times = start().measure([[1, 2], [3, 4]], 20)
    assert times["prefill_s"] >= 0.02
    assert times["decode_s"] >= 0.035  # twenty steps more than one token


def test_logits_are_written_or_said_to_be_missing(start, tmp_path):
    worker = start()
    assert worker.write_logits([0, 2, 3], tmp_path / "a.npy")
    assert np.load(tmp_path / "a.npy").argmax(-1).tolist() == [0, 2, 3]
    assert not worker.write_logits([1], tmp_path / "b.npy")
    assert not (tmp_path / "b.npy").exists()


def test_a_worker_that_cannot_load_says_why(start):
    with pytest.raises(MeasurementError, match="no such file") as caught:
        start("broken", fails=True)
    assert "broken.log" in str(caught.value)


def test_a_worker_that_dies_is_an_error_and_not_a_hang(start):
    worker = start()
    with pytest.raises(MeasurementError, match="ended with code 3"):
        worker.measure([[1]], 13)


def test_engines_take_turns_and_the_faster_one_wins(start):
    arms = [ARMS[0], ARMS[-1]]
    workers = {arms[0].name: start("ours", 0.001), arms[1].name: start("theirs", 0.01)}
    samples = measure(workers, batch=2, repeats=6)
    assert all(len(rates) == 6 for arm in samples.values() for rates in arm.values())
    rows = compare(arms, samples)
    ratio = rows[arms[0].name]["decode"]["against"][arms[1].name]
    assert ratio["verdict"] == "better"
    assert ratio["low"] > 1
    assert rows[arms[1].name]["decode"]["against"] == {}


def test_identical_logits_have_no_divergence():
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    found = divergence(logits.log_softmax(-1), logits.numpy())
    assert abs(found["mean_kl_nats"]) < 1e-6
    assert found["top1_agreement"] == 1
    other = divergence(logits.log_softmax(-1), logits.flip(0).numpy())
    assert other["mean_kl_nats"] > 0.1


def row(rate: float, against: dict[str, float]) -> dict[str, Any]:
    cell = {
        "tokens_per_s": rate,
        "low": rate,
        "high": rate,
        "against": {
            name: {"median": r, "low": r, "high": r, "verdict": "better"}
            for name, r in against.items()
        },
    }
    return {"decode": cell, "prefill": cell}


def test_the_table_compares_with_the_fastest_peer():
    rows = {"ours": row(30, {"slow": 3.0, "fast": 1.5}), "slow": row(10, {}), "fast": row(20, {})}
    assert list(best_ratios(rows, "decode")) == [
        "ours / fast (the fastest peer) = 1.50 [1.50, 1.50] better"
    ]
    rows["ours bf16"] = row(24, {"slow bf16": 2.4, "fast": 1.2})
    rows["slow bf16"] = row(10, {})
    assert [line.split(" = ")[0] for line in best_ratios(rows, "decode")][1:] == [
        "ours bf16 / fast (the fastest peer)",
        "ours bf16 / slow bf16 (the fastest bf16 peer)",
    ]
    report = {
        "batches": {"1": rows},
        "formats": {n: {"weights": "w", "activations": "a"} for n in rows},
        "divergence": dict.fromkeys(rows) | {"ours": {"mean_kl_nats": 0.00123}},
        "left_out": ["vLLM is left out"],
    }
    out = io.StringIO()
    show(report, Console(file=out, width=160))
    assert "0.0012" in out.getvalue()
    assert "not given" in out.getvalue()
    assert "vLLM is left out" in out.getvalue()
    document = to_markdown(report)
    assert "| ours | w | a | 0.0012 | 30 [30, 30] | 30 [30, 30] |" in document
    assert "1.50 [1.50, 1.50] better" in document


def test_missing_environments_are_named(tmp_path):
    site = Site("smollm2-135m-instruct-q4_1", tmp_path, tmp_path / "none", 1)
    arms, notes = chosen(site, None)
    assert {arm.engine for arm in arms} == {"infopt", "transformers"}
    assert any("llama.cpp Q4_0" in note and "make peers" in note for note in notes)


def test_an_unknown_arm_lists_the_known_ones(tmp_path):
    site = Site("smollm2-135m-instruct-q4_1", tmp_path, tmp_path, 1)
    with pytest.raises(MeasurementError, match="Unknown arm 'llama'") as caught:
        chosen(site, ["llama"])
    assert "llama.cpp Q4_0" in str(caught.value)
