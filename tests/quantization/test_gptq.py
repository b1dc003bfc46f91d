"""GPTQ: never worse than rounding, equal to it where nothing can be repaired, and sturdy."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.errors import CheckpointError
from infopt.quantization.coded import WeightFormat
from infopt.quantization.gptq import DAMPING, _inverse_factor, gptq
from infopt.quantization.rtn import rtn
from infopt.quantization.statistics import InputStatistics, output_error


def statistics_of(rows: torch.Tensor) -> InputStatistics:
    statistics = InputStatistics(rows.shape[1])
    statistics.add(rows, "layer")
    return statistics


def correlated_rows(num_rows: int, size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(size, size, generator=generator) / size**0.5
    scales = torch.logspace(-1, 1, size)
    return torch.randn(num_rows, size, generator=generator) @ mix * scales


def errors(weight: torch.Tensor, fmt: WeightFormat, rows: torch.Tensor, **options: object):
    statistics = statistics_of(rows)
    found = gptq(weight, fmt, statistics, **options)  # type: ignore[arg-type]
    moment = statistics.second_moment
    return found, [
        output_error(weight - coded.dequantize(), moment)
        for coded in (found.coded, rtn(weight, fmt))
    ]


@settings(max_examples=25, deadline=None)
@given(
    bits=st.sampled_from([2, 3, 4, 8]),
    group=st.sampled_from([None, 32]),
    symmetric=st.booleans(),
    act_order=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_never_worse_than_rounding(
    bits: int, group: int | None, symmetric: bool, act_order: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(12, 96, generator=generator)
    fmt = WeightFormat(bits, group, symmetric)
    _, (error, nearest) = errors(weight, fmt, correlated_rows(256, 96, seed), act_order=act_order)
    assert error <= nearest


@pytest.mark.parametrize(("act_order", "share"), [(False, 0.9), (True, 0.7)])
def test_repairs_the_error_of_correlated_inputs(act_order: bool, share: float) -> None:
    weight = torch.randn(32, 96, generator=torch.Generator().manual_seed(1))
    rows = correlated_rows(512, 96)
    found, (error, nearest) = errors(weight, WeightFormat(4, 32), rows, act_order=act_order)
    assert found.fell_back is None
    assert error < share * nearest


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("fmt", [WeightFormat(4, 32), WeightFormat(3, None, False)])
def test_equals_rounding_where_inputs_are_independent(fmt: WeightFormat, act_order: bool) -> None:
    statistics = InputStatistics(64)
    statistics.add(torch.eye(64) * 3.0, "layer")
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(2))
    found = gptq(weight, fmt, statistics, act_order=act_order)
    assert torch.equal(found.coded.codes, rtn(weight, fmt).codes)


def test_a_few_tokens_are_enough_to_go_on(caplog: pytest.LogCaptureFixture) -> None:
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(3))
    with caplog.at_level(logging.WARNING):
        found, (error, nearest) = errors(weight, WeightFormat(4, 32), correlated_rows(4, 64))
    assert bool(found.coded.dequantize().isfinite().all())
    assert error <= nearest
    assert found.damping >= DAMPING


def test_inputs_that_are_all_zero_round_to_nearest() -> None:
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(4))
    found = gptq(weight, WeightFormat(4, 32), statistics_of(torch.zeros(8, 64)), layer="layer 9")
    assert torch.equal(found.coded.codes, rtn(weight, WeightFormat(4, 32)).codes)


def test_a_channel_without_input_is_left_out_of_the_repair() -> None:
    """The others are rounded as if it were not there, and its own weights to nearest."""
    fmt = WeightFormat(4)
    weight = torch.randn(6, 32, generator=torch.Generator().manual_seed(5))
    weight[:, 0] = 9.0  # decides the scale, so that it is the same without the dead columns
    rows = correlated_rows(128, 32)
    dead = [3, 7, 20]
    rows[:, dead] = 0.0
    alive = [i for i in range(32) if i not in dead]
    whole = gptq(weight, fmt, statistics_of(rows), act_order=False)
    part = gptq(weight[:, alive], fmt, statistics_of(rows[:, alive]), act_order=False)
    assert torch.equal(whole.coded.codes[:, dead], rtn(weight, fmt).codes[:, dead])
    # Damping is a share of the mean diagonal, which the dead channels dilute: near, not equal.
    same = (whole.coded.codes[:, alive] == part.coded.codes).float().mean()
    assert float(same) > 0.95


@pytest.mark.parametrize("dead", [[0, 2, 3], [5], []])
def test_only_what_belongs_to_dead_channels_is_neutralised(dead: list[int]) -> None:
    """Pins: the index of dead channels had the wrong shape and touched the whole matrix."""
    rows = correlated_rows(64, 8)
    rows[:, dead] = 0.0
    moment = statistics_of(rows).second_moment
    before = moment.clone()
    factor, damping = _inverse_factor(moment, act_order=False, damping=DAMPING)
    assert factor is not None
    assert torch.equal(moment, before)
    alive = [i for i in range(8) if i not in dead]
    hessian = torch.linalg.inv(factor.double().T @ factor.double())
    kept = before[alive][:, alive].double()
    mean = float(before.diagonal().mean())
    expected = kept + damping * mean * torch.eye(len(alive), dtype=torch.float64)
    torch.testing.assert_close(hessian[alive][:, alive], expected, rtol=1e-3, atol=1e-3 * mean)
    assert hessian[dead][:, alive].abs().max() < 1e-3 * mean if dead else True


def test_a_single_column_with_weight_is_rounded_as_if_alone() -> None:
    weight = torch.zeros(3, 4)
    weight[:, 1] = torch.tensor([0.3, -1.2, 2.0])
    statistics = statistics_of(correlated_rows(64, 4))
    moment = statistics.second_moment.clone()
    found = gptq(weight, WeightFormat(4), statistics)
    assert torch.equal(statistics.second_moment, moment)
    assert torch.equal(found.coded.codes[:, 1], rtn(weight, WeightFormat(4)).codes[:, 1])
    assert bool(found.coded.dequantize().isfinite().all())


def test_weights_that_are_no_numbers_are_refused() -> None:
    weight = torch.randn(4, 32)
    weight[0, 0] = float("nan")
    with pytest.raises(CheckpointError, match="layer 2"):
        gptq(weight, WeightFormat(4), statistics_of(torch.randn(8, 32)), layer="layer 2")
