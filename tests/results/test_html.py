"""How numbers and their intervals are written."""

from __future__ import annotations

import pytest

from infopt.results.html import format_interval, format_ratio, format_value


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0.0011866, 0.001122, 0.001257), "0.00119 [0.00112, 0.00126]"),
        ((637.21, 581.6, 655.1), "637 [582, 655]"),
        ((1.0096, 1.004, 1.0151), "1.010 [1.004, 1.015]"),
        ((22.897, 22.655, 23.143), "22.9 [22.7, 23.1]"),
        ((0.371, 0.22, 0.6), "0.37 [0.22, 0.60]"),
        ((5.306, 3.803, 7.2), "5.3 [3.8, 7.2]"),
        ((428.4, 428.4, 428.4), "428"),  # one sample tells nothing of its own spread
        ((3e-8, 2e-8, 4e-8), "3.00e-08 [2.00e-08, 4.00e-08]"),
    ],
)
def test_numbers_have_the_decimals_that_their_interval_leaves(
    numbers: tuple[float, float, float], expected: str
) -> None:
    assert format_interval(*numbers) == expected


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((1.364, 1.338, 1.397), "1.36x [1.34, 1.40]"),
        ((0.9734, 0.9622, 0.9992), "0.973x [0.962, 0.999]"),  # decided: its end is not 1
        ((1.0, 0.95, 1.0), "1.00x [0.95, 1.00]"),
        ((0.0494, 0.0483, 0.0513), "0.049x [0.048, 0.051]"),
        ((0.574, 0.574, 0.574), "0.574x"),
    ],
)
def test_ratios_are_not_rounded_to_what_they_are_not(
    numbers: tuple[float, float, float], expected: str
) -> None:
    assert format_ratio(*numbers) == expected


def test_large_whole_numbers_need_no_exponent() -> None:
    assert [format_value(value, 3) for value in (1024, 16384, 0.00012)] == [
        *("1024", "16384", "0.00012")
    ]
