"""Channel scales: AWQ's search and SmoothQuant's formula."""

from __future__ import annotations

import logging

import pytest
import torch

from infopt.errors import MeasurementError
from infopt.quantization.balance import Balance, awq_balance, smooth_balance
from infopt.quantization.coded import WeightFormat
from infopt.quantization.rtn import rtn
from infopt.quantization.statistics import InputStatistics, output_error, relative_error

FMT = WeightFormat(3, 32)


def rounded(weight: torch.Tensor) -> torch.Tensor:
    return rtn(weight, FMT).dequantize()


def statistics_of(rows: torch.Tensor) -> InputStatistics:
    statistics = InputStatistics(rows.shape[1])
    statistics.add(rows, "layer")
    return statistics


def rows_with_outliers(seed: int = 0) -> torch.Tensor:
    rows = torch.randn(256, 64, generator=torch.Generator().manual_seed(seed))
    rows[:, [3, 40]] *= 30.0
    return rows


def random_weights(count: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 64, generator=generator) for _ in range(count)]


def test_awq_protects_channels_with_large_inputs() -> None:
    found = awq_balance(random_weights(), statistics_of(rows_with_outliers()), rounded)
    assert found.error < 0.7 * found.error_plain
    assert found.exponent > 0
    assert float(found.scale[3]) > 2 * float(found.scale.median())


@pytest.mark.parametrize("seed", range(5))
def test_awq_is_never_worse_than_plain_rounding(seed: int) -> None:
    rows = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
    found = awq_balance(random_weights(), statistics_of(rows), rounded)
    assert found.error <= found.error_plain


def test_the_error_reported_is_that_of_the_outputs() -> None:
    weights, rows = random_weights(1), rows_with_outliers()
    found = awq_balance(weights, statistics_of(rows), rounded)
    quantized = rounded(weights[0] * found.scale) / found.scale
    outputs = rows.double() @ (weights[0] - quantized).double().t()
    assert found.error == pytest.approx(float(outputs.square().sum(1).mean()), rel=1e-4)


def test_a_dead_channel_keeps_scale_one() -> None:
    rows = rows_with_outliers()
    rows[:, 7] = 0.0
    rows[:, 8] *= 1e4
    found = awq_balance(random_weights(), statistics_of(rows), rounded)
    assert float(found.scale[7]) == 1.0
    assert bool(found.scale.isfinite().all())


def test_without_any_finite_error_rounding_stays_plain(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = awq_balance(
            random_weights(),
            statistics_of(rows_with_outliers()),
            lambda w: torch.full_like(w, float("nan")),
            layer="model.layers.4.qkv",
        )
    assert found.is_plain
    assert torch.equal(found.scale, torch.ones(64))
    assert "model.layers.4.qkv" in caplog.text


def test_smoothing_levels_the_inputs() -> None:
    rows, weights = rows_with_outliers(), random_weights()
    found = smooth_balance(weights, statistics_of(rows))
    before, after = rows.abs().amax(0), (rows / found.scale).abs().amax(0)
    assert float(after.max() / after.median()) < 0.3 * float(before.max() / before.median())
    largest = torch.cat(weights).abs().amax(0)
    expected = before.sqrt() / largest.sqrt()
    ratio = found.scale / expected
    assert float(ratio.std() / ratio.mean()) < 1e-5


def test_scaled_statistics_are_those_of_scaled_inputs() -> None:
    rows = rows_with_outliers()
    scale = torch.rand(64, generator=torch.Generator().manual_seed(2)) + 0.5
    direct, derived = statistics_of(rows / scale), statistics_of(rows).divided_by(scale)
    torch.testing.assert_close(derived.second_moment, direct.second_moment)
    torch.testing.assert_close(derived.mean_abs, direct.mean_abs)
    torch.testing.assert_close(derived.absmax, direct.absmax)


def test_statistics_do_not_depend_on_how_inputs_are_cut() -> None:
    rows = rows_with_outliers()
    parts = InputStatistics(64)
    for part in rows.split(37):
        parts.add(part, "layer")
    torch.testing.assert_close(parts.second_moment, statistics_of(rows).second_moment)
    assert parts.num_rows == 256
    assert parts.largest == statistics_of(rows).largest


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_calibration_inputs_that_are_no_numbers_are_refused(bad: float) -> None:
    rows = rows_with_outliers()
    rows[5, 5] = bad
    with pytest.raises(MeasurementError, match="mlp"):
        InputStatistics(64).add(rows, "mlp")


def test_errors_of_outputs() -> None:
    rows = rows_with_outliers()
    weight = random_weights(1)[0]
    moment = statistics_of(rows).second_moment
    difference = weight - rounded(weight)
    expected = (rows.double() @ difference.double().t()).square().sum(1).mean()
    assert output_error(difference, moment) == pytest.approx(float(expected), rel=1e-4)
    assert relative_error(weight, weight, moment) == 0.0
    assert relative_error(torch.zeros(2, 64), torch.zeros(2, 64), moment) == 0.0
    assert relative_error(weight, torch.zeros_like(weight), moment) == pytest.approx(1.0)


def test_a_balance_knows_whether_it_changes_anything() -> None:
    assert Balance(torch.ones(2), 0.0, 1.0, 1.0).is_plain
    assert not Balance(torch.ones(2), 0.5, 1.0, 2.0).is_plain
