"""What two readings of a counter say; each case is one that gave wrong energies somewhere."""

import pytest

from infopt.energy.counters import Edge, energy_between
from infopt.energy.errors import CounterResetError, CounterStuckError


def between(counter, start_uj: int, end_uj: int, seconds: float = 2.0) -> float:
    return energy_between(counter, Edge(10.0, start_uj), Edge(10.0 + seconds, end_uj))


def test_the_difference_is_the_energy(fake_counter) -> None:
    assert between(fake_counter(), 1_000_000, 3_500_000) == 2.5


def test_a_counter_that_wrapped_once(fake_counter) -> None:
    counter = fake_counter(wrap_uj=262_143_328_850)
    assert between(counter, 262_143_328_850 - 1_000_000, 500_000) == pytest.approx(1.5)


def test_a_counter_that_starts_again_is_no_wrap(fake_counter) -> None:
    """Pins the reset that would be 262 kJ in two seconds if it were taken for a wrap-around."""
    with pytest.raises(CounterResetError) as caught:
        between(fake_counter(wrap_uj=262_143_328_850), 5_000_000, 100)
    assert caught.value.field == "reset"
    with pytest.raises(CounterResetError, match="went back"):
        between(fake_counter(name="gpu-0"), 5_000_000, 100)


def test_a_window_in_which_it_may_have_wrapped_twice_has_no_energy(fake_counter) -> None:
    counter = fake_counter(wrap_uj=262_143_328_850)
    with pytest.raises(CounterResetError) as caught:
        between(counter, 0, 1_000_000, seconds=3600.0)
    assert caught.value.field == "wrap"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1.5, "counter did not advance."), (0.0005, "shorter than its update interval")],
)
def test_a_counter_that_stands_still_is_not_zero_joules(
    fake_counter, seconds: float, words: str
) -> None:
    """Pins results that were all zero on a processor nobody knew."""
    with pytest.raises(CounterStuckError, match=words):
        between(fake_counter(), 700, 700, seconds)
