import numpy as np
import pytest

from infopt.bench.lengths import sample_lengths
from infopt.errors import ConfigError, WorkloadError


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_number_is_a_constant_length() -> None:
    assert sample_lengths(7, 3, rng()) == [7, 7, 7]


def test_uniform_lengths_include_both_ends() -> None:
    lengths = sample_lengths({"kind": "uniform", "min": 2, "max": 4}, 200, rng())
    assert set(lengths) == {2, 3, 4}


def test_lognormal_lengths_are_clipped_around_their_median() -> None:
    spec = {"kind": "lognormal", "median": 100, "sigma": 1.0, "min": 20, "max": 400}
    lengths = sample_lengths(spec, 4000, rng())
    assert min(lengths) == 20
    assert max(lengths) == 400
    assert np.median(lengths) == pytest.approx(100, rel=0.05)


def test_zipf_lengths_have_a_heavy_tail() -> None:
    spec = {"kind": "zipf", "alpha": 1.0, "min": 1, "max": 1000}
    lengths = np.array(sample_lengths(spec, 20_000, rng()))
    # P(k) = (1/k) / H(1000), H(1000) = 7.4855
    assert np.mean(lengths == 1) == pytest.approx(1 / 7.4855, rel=0.05)
    assert lengths.mean() == pytest.approx(1000 / 7.4855, rel=0.05)
    assert np.median(lengths) < 0.3 * lengths.mean()


def test_equal_seeds_give_equal_lengths() -> None:
    spec = {"kind": "uniform", "min": 1, "max": 1000}
    assert sample_lengths(spec, 50, rng()) == sample_lengths(spec, 50, rng())


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ({"kind": "uniforms", "min": 1, "max": 2}, ConfigError, "Did you mean 'uniform'"),
        ({"kind": "uniform", "minimum": 1, "max": 2}, ConfigError, "Did you mean 'min'"),
        ({"kind": "uniform", "min": 1}, WorkloadError, "needs 'max'"),
        ({"min": 1, "max": 2}, WorkloadError, "needs a kind"),
        ({"kind": "uniform", "min": 3, "max": 2}, WorkloadError, "min=3 is above its max=2"),
        ({"kind": "uniform", "min": "1", "max": 2}, WorkloadError, "min must be a whole number"),
        (0, WorkloadError, "value must be a whole number >= 1, got 0"),
        ({"kind": "zipf", "alpha": 0, "min": 1, "max": 2}, WorkloadError, "alpha"),
        ({"kind": "lognormal", "median": -1, "sigma": 1, "min": 1, "max": 2}, WorkloadError,
         "median"),
    ],
)  # fmt: skip
def test_bad_specifications_name_the_option(spec, error, message) -> None:
    with pytest.raises(error, match=message):
        sample_lengths(spec, 1, rng())
