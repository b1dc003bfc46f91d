"""Limits that a roofline is drawn from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from infopt.experiments import machine
from infopt.machine_rates import RateMeasurement


def test_the_fastest_product_that_a_layer_can_use_is_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow BLAS used to be the limit, and steps then ran at 130 % of it."""
    measured: list[Any] = []

    def measure(*_args: Any, prepare: Any, **_options: Any) -> RateMeasurement:
        measured.append(prepare)
        return RateMeasurement("matmul_flops_per_s", (3.0, 9.0 + len(measured)), "cpu", 1, {})

    monkeypatch.setattr(machine, "matmul_flops", lambda *_: 5.0)
    monkeypatch.setattr(machine, "measure_matmul_flops", measure)
    machine._fastest_product.cache_clear()
    try:
        assert machine._fastest_product(torch.float32, "cpu", 1) == 9.0 + len(measured)
        assert measured
    finally:
        machine._fastest_product.cache_clear()


def test_torchs_product_is_the_limit_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = RateMeasurement("matmul_flops_per_s", (1.0,), "cpu", 1, {})
    monkeypatch.setattr(machine, "matmul_flops", lambda *_: 5.0)
    monkeypatch.setattr(machine, "measure_matmul_flops", lambda *_, **__: slow)
    machine._fastest_product.cache_clear()
    try:
        assert machine._fastest_product(torch.float32, "cpu", 1) == 5.0
    finally:
        machine._fastest_product.cache_clear()
