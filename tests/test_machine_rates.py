"""Rates of the machine: samples, types, and that they are measured once."""

from collections.abc import Callable

import pytest
import torch

from infopt import machine_rates
from infopt.errors import MeasurementError


def test_bandwidth_measurement_reports_its_samples() -> None:
    threads = torch.get_num_threads()
    measured = machine_rates.measure_memory_bandwidth(1, working_set_bytes=2**22, repeats=3)
    assert torch.get_num_threads() == threads
    assert len(measured.samples) == 3
    assert min(measured.samples) <= measured.median <= measured.best == max(measured.samples)
    assert measured.detail["working_set_bytes"] == 2**22
    assert measured.detail["reader"] in ("mv", "sum")
    assert measured.to_dict()["quantity"] == "memory_bytes_per_s"
    assert measured.num_threads == 1


def test_flops_measurement_reports_its_type() -> None:
    measured = machine_rates.measure_matmul_flops(torch.bfloat16, 1, size=64, repeats=2)
    assert measured.detail == {"dtype": "bfloat16", "size": 64}
    assert all(s > 0 for s in measured.samples)


def test_flops_are_measured_with_any_product() -> None:
    seen = []

    def prepare(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        def multiply(x: torch.Tensor) -> torch.Tensor:
            seen.append((x.shape, weight.shape))
            return x

        return multiply

    measured = machine_rates.measure_matmul_flops(size=8, repeats=2, prepare=prepare)
    assert seen == [((8, 8), (8, 8))] * 3  # the first call is warm-up
    assert len(measured.samples) == 2


def test_any_work_has_a_rate() -> None:
    calls: list[int] = []
    measured = machine_rates.measure_rate(lambda: calls.append(1), 1e6, 1, repeats=3)
    assert len(calls) == 4
    assert len(measured.samples) == 3
    assert measured.detail == {"amount": 1e6}
    assert min(measured.samples) > 0


def test_peaks_are_measured_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measure(*_args, **_kwargs) -> machine_rates.RateMeasurement:
        calls.append(1)
        return machine_rates.RateMeasurement("matmul_flops_per_s", (5.0, 7.0), "cpu", 1, {})

    monkeypatch.setattr(machine_rates, "measure_matmul_flops", measure)
    machine_rates.matmul_flops.cache_clear()
    assert machine_rates.matmul_flops() == machine_rates.matmul_flops() == 7.0
    assert len(calls) == 1
    machine_rates.matmul_flops.cache_clear()


def test_no_repeats_are_refused() -> None:
    with pytest.raises(MeasurementError, match="repeats must be at least 1, got 0"):
        machine_rates.measure_matmul_flops(size=8, repeats=0)
