"""Options of speculation: named errors, defaults, and the registry."""

from __future__ import annotations

from typing import Any

import pytest

from infopt import EngineConfig
from infopt.engine.draft_stats import DraftStats
from infopt.errors import ConfigError
from infopt.speculative import DRAFTERS, describe_speculation, make_drafter
from infopt.speculative.config import read_options


def test_none_asks_for_none() -> None:
    assert make_drafter(None) is None
    assert describe_speculation(None, None) is None


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_methods_are_found_by_name(method: str) -> None:
    drafter = make_drafter({"method": method, "num_speculative_tokens": 3})
    assert drafter is not None
    assert drafter.max_tokens == 3
    assert method in DRAFTERS


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "method"),
        ({"num_speculative_tokens": 3}, "method"),
        ({"method": 5}, "5"),
        ({"method": ["ngram"]}, "method"),
        ({"method": "ngran"}, "Did you mean 'ngram'"),
        ({"method": "ngram", "num_tokens": 3}, "num_speculative_tokens"),
        ({"method": "suffix", "prompt_lookup_max": 3}, "prompt_lookup_max"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "from 1 to 32, got 0"),
        ({"method": "ngram", "num_speculative_tokens": 33}, "got 33"),
        ({"method": "ngram", "num_speculative_tokens": True}, "got True"),
        ({"method": "ngram", "num_speculative_tokens": 2.0}, "got 2.0"),
        ({"method": "ngram", "num_speculative_tokens": "4"}, "got '4'"),
        ({"method": "ngram", "prompt_lookup_min": 5}, "prompt_lookup_min=5 is above"),
        ({"method": "ngram", "prompt_lookup_max": 0}, "prompt_lookup_max"),
        ({"method": "suffix", "min_match": 0}, "min_match"),
        ({"method": "suffix", "max_spec_factor": -1}, "max_spec_factor"),
        ({"method": "draft_model"}, "model"),
        ({"method": "draft_model", "model": 3}, "got 3"),
        ({"method": "draft_model", "model": "a", "num_speculative_tokens": 0}, "got 0"),
        ({"method": "draft_model", "model": "a", "quantization": ""}, "quantization"),
        ({"method": "draft_model", "model": "a", "acceptance": "ration"}, "Did you mean 'ratio'"),
        ({"method": "draft_model", "model": "a", "dtype": "int8"}, "dtype"),
        ({"method": "draft_model", "model": "a"}, "there is none"),
        ({"method": "draft_head"}, "infopt train-draft"),
        ({"method": "draft_head", "model": "a", "num_speculative_tokens": 40}, "got 40"),
        ({"method": "draft_head", "model": "a", "acceptance": None}, "acceptance"),
        ({"method": "early_exit", "skip_layers": []}, "skip_layers"),
        ({"method": "early_exit", "skip_layers": [1, 1]}, "skip_layers"),
        ({"method": "early_exit", "skip_layers": [-1]}, "skip_layers"),
        ({"method": "early_exit", "skip_layers": 3}, "got 3"),
        ({"method": "early_exit", "skip_layers": [True]}, "skip_layers"),
        ({"method": "early_exit"}, "there is none"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match="speculative") as caught:
        make_drafter(options)
    assert text in str(caught.value)


def test_an_engine_refuses_bad_options_before_it_loads_anything() -> None:
    from infopt.engine.loader import build_engine

    config = EngineConfig("no-such-model", speculative={"method": "nope"})
    with pytest.raises(ConfigError, match="Unknown speculative method 'nope'"):
        build_engine(config)


def test_a_report_shows_defaults_and_rates() -> None:
    stats = DraftStats()
    assert describe_speculation({"method": "ngram"}, stats) is not None
    for proposed, accepted, emitted in ((4, 4, 5), (4, 1, 2), (2, 0, 1), (3, 3, 3)):
        stats.add(proposed, accepted, emitted)
    stats.num_plain_passes = 2
    report = describe_speculation({"method": "ngram", "prompt_lookup_max": 3}, stats)
    assert report is not None
    assert report["prompt_lookup_max"] == 3
    assert (
        report["num_speculative_tokens"] == read_options({"method": "ngram"}).num_speculative_tokens
    )
    assert (report["proposed_tokens"], report["accepted_tokens"]) == (13, 8)
    assert report["acceptance_by_position"] == [3 / 4, 2 / 4, 2 / 3, 1 / 2]
    assert report["alpha"] == 8 / (8 + 2)
    assert report["tokens_per_drafted_pass"] == 11 / 4
    assert report["tokens_per_pass"] == 13 / 6
    # Lengths 4, 4, 2 and 3 at alpha 0.8.
    formula = (2 * 3.3616 + 2.44 + 2.952) / 4
    assert report["formula_tokens_per_drafted_pass"] == pytest.approx(formula)


def test_nothing_is_known_before_the_first_pass() -> None:
    report = describe_speculation({"method": "suffix"}, DraftStats())
    assert report is not None
    for name in ("acceptance_rate", "alpha", "tokens_per_pass", "formula_tokens_per_drafted_pass"):
        assert report[name] is None
    assert report["acceptance_by_position"] == []
