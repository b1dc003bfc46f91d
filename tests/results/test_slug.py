from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infopt.errors import ResultError
from infopt.results import check_slug, make_slug
from infopt.results.slug import MAX_SLUG_BYTES, SLUG_PATTERN

KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,30}", fullmatch=True)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.lists(st.integers(0, 9), max_size=3),
)
OPTIONS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=12)


def test_readable_options_stay_readable() -> None:
    assert (
        make_slug(scheduling="static", max_num_seqs=8, ratio=0.5, warm=True)
        == "max_num_seqs=8-ratio=0.5-scheduling=static-warm=true"
    )


@given(OPTIONS)
def test_slugs_are_valid_file_names(options: dict[str, object]) -> None:
    slug = make_slug(**options)
    assert SLUG_PATTERN.fullmatch(slug)
    assert len(slug.encode()) <= MAX_SLUG_BYTES < 200
    check_slug(slug, "stage")


@given(OPTIONS, OPTIONS)
def test_different_options_have_different_slugs(
    first: dict[str, object], second: dict[str, object]
) -> None:
    def exact(options: dict[str, object]) -> list[tuple[str, str]]:
        return sorted((k, repr(v)) for k, v in options.items())

    same = exact(first) == exact(second)
    assert (make_slug(**first) == make_slug(**second)) == same


@given(OPTIONS)
def test_order_does_not_matter(options: dict[str, object]) -> None:
    assert make_slug(**dict(reversed(options.items()))) == make_slug(**options)


@pytest.mark.parametrize(
    ("first", "second"), [("A", "a"), ("a/b", "a-b"), (1, "1"), (None, "null"), (True, "true")]
)
def test_values_that_look_alike_are_told_apart(first: object, second: object) -> None:
    assert make_slug(x=first) != make_slug(x=second)


def test_many_long_options_fit_into_a_file_name() -> None:
    """File names over 255 bytes made jobs fail after they had succeeded."""
    options = {f"a_very_long_parameter_name_number_{i}": "some value" for i in range(12)}
    slug = make_slug(**options)
    assert len(f".{slug}.json.4194304.tmp".encode()) < 255
    options["a_very_long_parameter_name_number_11"] = "some other value"
    assert make_slug(**options) != slug


def test_slugs_do_not_depend_on_the_process() -> None:
    """Names that followed set order or the hash seed made every run start over."""
    code = "from infopt.results import make_slug; print(make_slug(b={'y': 1, 'x': 'Z'}, a='Q'))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1


def test_no_options_is_an_error() -> None:
    with pytest.raises(ResultError):
        make_slug()
