"""The check of a GPU machine, rehearsed on tiny shapes in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from infopt import LLM
from infopt.bench import gpu_check
from infopt.bench.gpu.budget import Budget
from infopt.bench.gpu.case import KernelCase
from infopt.bench.gpu.energy import joules_of
from infopt.bench.gpu.engine import REPEATS, graph_rates, without_graphs
from infopt.bench.gpu.kernels import bound_seconds
from infopt.engine.decode_graphs import DecodeGraphs, GraphLimits
from infopt.errors import BackendError

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
CPU = torch.device("cpu")
rehearsal = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to check")


@needs_triton
@rehearsal
def test_engine_section_agrees_with_transformers(tmp_path):
    out = tmp_path / "check.json"
    gpu_check.run_check(out, CPU, 300, only=["tiny"])
    report = json.loads(out.read_text())
    assert report["environment"]["versions"]["torch"] == torch.__version__
    assert "flash_attn" in report["environment"]["missing"]
    section = report["sections"]["tiny"]
    assert section["status"] == "ok", section
    assert section["result"]["ops"]["attention"]["backend"] == "triton"
    assert section["result"]["agreement"]["max_relative_error"] <= 1e-4
    assert set(section["result"]["decode"]) == {"2"}
    graphs = section["result"]["graphs"]
    assert (graphs["state"], graphs["reason"], graphs["decode"]) == ("off", "a cpu has none", {})
    assert "graphs against launches off, a cpu has none" in gpu_check.summary_line("tiny", section)


def test_graphs_are_measured_beside_launches(tiny_model_dir, monkeypatch):
    """With an imitation that calls the step again: both arms run, and only one is replayed."""

    def steady(run, count):  # the time of so few tokens is noise
        run(count)
        return float(count)

    class Rerun:
        def capture(self, step):
            return step

    monkeypatch.setattr("infopt.bench.gpu.engine._seconds", steady)
    with LLM(str(tiny_model_dir("llama")), dtype="float32", max_num_seqs=4) as llm:
        runner = llm.engine.runner
        limits = GraphLimits.of(runner.layout, 4, 512)
        runner.graphs = DecodeGraphs(runner.compute, Rerun(), limits, runner.device)
        section = graph_rates(llm, (1, 3), 5, 3, Budget(60))
        with without_graphs(llm):
            assert llm.stats()["cuda_graphs"]["state"] == "off"
        assert runner.graphs is not None
    assert section["state"] == "on"
    num_replays = 3 * (REPEATS + 1)  # the token after the prompt comes from a chunk
    assert section["buckets"] == dict.fromkeys(
        ["1 rows x 32 pages", "4 rows x 32 pages"], num_replays
    )
    for batch in ("1", "3"):
        rates = section["decode"][batch]
        assert rates["reference"] == "launches", rates
        assert set(rates["ratios"]) == {"graphs"}
        assert (
            rates["samples"]["graphs"] == rates["samples"]["launches"] == [float(batch)] * REPEATS
        )


@needs_triton
@rehearsal
@pytest.mark.slow
def test_kernel_section_passes(tmp_path):
    report = gpu_check.run_check(tmp_path / "check.json", CPU, 600, only=["kernels", "invariance"])
    kernels = report["sections"]["kernels"]["result"]
    assert kernels["failed"] == kernels["skipped"] == []
    assert len(kernels["cases"]) >= 30
    for name, case in kernels["cases"].items():
        assert case["seconds"] > 0, name
        assert case["bound_seconds"] > 0, name
    assert report["sections"]["invariance"]["status"] == "ok"


@needs_triton
@rehearsal
def test_a_failing_section_is_recorded_and_the_next_one_runs(tmp_path, monkeypatch):
    def fails(device, budget):
        raise RuntimeError("out of memory")

    found = {"kernels": fails, "invariance": lambda device, budget: {"rows": True}}
    monkeypatch.setattr(gpu_check, "sections", lambda device: found)
    out = tmp_path / "check.json"
    gpu_check.run_check(out, CPU, 10)
    sections = json.loads(out.read_text())["sections"]
    assert sections["kernels"]["status"] == "failed"
    assert sections["kernels"]["reason"] == "RuntimeError: out of memory"
    assert sections["invariance"]["result"] == {"rows": True}


@needs_triton
@rehearsal
def test_the_report_is_written_after_each_section(tmp_path, monkeypatch):
    out, seen = tmp_path / "check.json", []

    def section(device, budget):
        seen.append(list(json.loads(out.read_text())["sections"]))
        return {"value": float("nan")}

    monkeypatch.setattr(
        gpu_check, "sections", lambda d: dict.fromkeys(("kernels", "tiny"), section)
    )
    gpu_check.run_check(out, CPU, 10)
    assert seen == [[], ["kernels"]]
    assert json.loads(out.read_text())["sections"]["tiny"]["result"] == {"value": None}


@needs_triton
@rehearsal
def test_no_time_left_skips(tmp_path):
    report = gpu_check.run_check(tmp_path / "check.json", CPU, 0.0)
    assert {s["status"] for s in report["sections"].values()} == {"skipped"}
    assert all(gpu_check.summary_line(n, s) for n, s in report["sections"].items())


@rehearsal
def test_a_machine_without_a_gpu_is_refused(tmp_path):
    with pytest.raises(BackendError, match=r"no CUDA device|not installed"):
        gpu_check.run_check(tmp_path / "check.json", torch.device("cuda"), 10)
    assert not list(tmp_path.iterdir())


def test_budget_on_a_virtual_clock():
    now = [10.0]
    budget = Budget(8.0, lambda: now[0])
    part = budget.share(0.5)
    now[0] = 13.0
    assert (budget.left_s, part.left_s) == (5.0, 1.0)
    now[0] = 14.5
    assert part.is_spent and not budget.is_spent


def test_bound_is_the_slower_of_memory_and_products():
    peaks = {"bytes_per_s": 100.0, "bfloat16": 1000.0}
    zero = lambda: torch.zeros(1)  # noqa: E731
    case = KernelCase("a/b", zero, zero, 0.0, num_bytes=50.0, flops=100.0)
    assert bound_seconds(case, peaks) == 0.5
    case = KernelCase("a/b", zero, zero, 0.0, num_bytes=50.0, flops=2000.0)
    assert bound_seconds(case, peaks) == 2.0


def test_error_of_a_case():
    got, expected = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])
    case = KernelCase("a/b", lambda: got, lambda: expected, 0.1, 1.0)
    assert case.error() == 0.5
    other_shape = KernelCase("a/b", lambda: got[:1], lambda: expected, 0.1, 1.0)
    assert other_shape.error() == float("inf")


def test_energy_without_a_counter_says_why():
    ran = []
    assert joules_of(lambda: ran.append(1), CPU) == (None, "no GPU")
    assert ran == [1]
