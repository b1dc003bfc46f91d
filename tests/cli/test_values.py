"""KEY=VALUE texts of the command line."""

from __future__ import annotations

import pytest

from infopt.cli.values import parse_arm, parse_mapping, parse_pairs
from infopt.errors import ConfigError


def test_values_have_the_types_of_yaml() -> None:
    pairs = ["a=8", "b=0.5", "c=true", "d=null", "e=text", "f={kind: poisson, rate: 4}", "g=x=y"]
    assert parse_pairs(pairs, "set") == {
        "a": 8,
        "b": 0.5,
        "c": True,
        "d": None,
        "e": "text",
        "f": {"kind": "poisson", "rate": 4},
        "g": "x=y",
    }


@pytest.mark.parametrize("text", ["novalue", "=3", "  =3", "a={", "a=[1"])
def test_bad_pairs_are_quoted_in_the_error(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_pairs([text], "workload_option")
    assert "--workload-option" in caught.value.message
    assert text.partition("=")[2] in caught.value.message


def test_a_key_given_twice_is_an_error() -> None:
    """The last one would win without a word."""
    with pytest.raises(ConfigError, match="twice"):
        parse_pairs(["a=1", "a=2"], "set")


def test_arms() -> None:
    assert parse_arm("base=") == ("base", {})
    assert parse_arm("s=scheduling=static,max_num_seqs=8") == (
        "s",
        {"scheduling": "static", "max_num_seqs": 8},
    )
    for text in ("noequals", "=a=b", "x=a"):
        with pytest.raises(ConfigError):
            parse_arm(text)


def test_mappings_have_a_name_a_json_form_and_pairs() -> None:
    assert parse_mapping(["auto"], "speculative", "method") == {"method": "auto"}
    text = '{"method": "auto", "drafter": {"method": "ngram"}}'
    expected = {"method": "auto", "drafter": {"method": "ngram"}}
    assert parse_mapping([text], "speculative", "method") == expected
    assert parse_mapping(["method=ngram", "min=2"], "speculative", "method") == {
        "method": "ngram",
        "min": 2,
    }


@pytest.mark.parametrize("texts", [["{"], ["{}", "a=1"], ["auto", "a=1"], ['{"a"'], ["[1]"]])
def test_mappings_that_are_none_are_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="--speculative"):
        parse_mapping(texts, "speculative", "method")


def test_a_lone_word_needs_a_meaning() -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_mapping(["auto"], "calibration")
