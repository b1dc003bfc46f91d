"""Options of speculation: named errors, defaults, and the registry."""

from __future__ import annotations

from typing import Any

import pytest

from infopt import EngineConfig
from infopt.engine.clock import VirtualClock
from infopt.engine.draft_control import DraftControl, DraftedPass, StepOutcome
from infopt.engine.draft_stats import DraftStats
from infopt.errors import ConfigError
from infopt.speculative import DRAFTERS, describe_speculation, make_control, make_drafter
from infopt.speculative.config import read_options
from infopt.speculative.controller import AutoControl
from infopt.speculative.proposal import DECISIONS
from infopt.speculative.theory import speedup


def test_none_asks_for_none() -> None:
    assert make_drafter(None) is None
    assert describe_speculation(None, None) is None


def test_auto_guesses_with_another_method() -> None:
    options = {"method": "auto", "drafter": {"method": "ngram", "num_speculative_tokens": 7}}
    drafter = make_drafter(options)
    assert drafter is not None
    assert drafter.max_tokens == 7
    clock = VirtualClock()
    assert isinstance(make_control(options, clock), AutoControl)
    assert type(make_control({"method": "ngram"}, clock)) is DraftControl
    assert type(make_control(None, clock)) is DraftControl
    stats = DraftStats()
    report = describe_speculation(options, stats, make_control(options, clock))
    assert report is not None
    assert report["drafter"] == options["drafter"]
    assert report["controller"]["decisions"] == dict.fromkeys(DECISIONS, 0)
    assert report["controller"]["predicted_speedup"] is None
    plain = describe_speculation({"method": "ngram"}, stats, make_control(None, clock))
    assert plain is not None
    assert plain["controller"] is None


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
        ({"method": "auto", "num_speculative_tokens": 3}, "drafter"),
        ({"method": "auto", "probe_share": 0.7}, "from 0 to 0.5, got 0.7"),
        ({"method": "auto", "probe_share": True}, "got True"),
        ({"method": "auto", "drafter": "ngram"}, "got 'ngram'"),
        ({"method": "auto", "drafter": {"method": "auto"}}, "drafter must name a method"),
        ({"method": "auto", "drafter": {"method": "ngran"}}, "Did you mean 'ngram'"),
        ({"method": "auto", "drafter": {"method": "ngram", "min_match": 2}}, "min_match"),
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


def test_the_formula_holds_for_steps_that_take_what_they_should() -> None:
    """Four guesses, all kept; a guess takes a tenth of a step, verifying as long as a step."""
    stats = DraftStats()
    for _ in range(3):
        stats.add_step(StepOutcome(1, 1, 0, 1.0, 0.0))
        stats.add_step(StepOutcome(1, 1, 4, 1.0, 0.4, (DraftedPass(0, 4, 4, 5),)))
    assert stats.draft_cost == pytest.approx(0.1)
    assert stats.verify_cost == 1.0
    assert stats.mean_length == 4
    assert (stats.plain.num_tokens, stats.drafted.num_tokens) == (3, 15)
    report = describe_speculation({"method": "ngram"}, stats)
    assert report is not None
    assert report["draft_s"] == pytest.approx(1.2)
    # Half of the passes are plain; time adds up, so gains are not averaged.
    gain = speedup(1.0, 4, 0.1)
    assert report["formula_speedup"] == pytest.approx((5 + 1) / (5 / gain + 1))


def test_steps_with_prompts_are_no_decode_steps() -> None:
    stats = DraftStats()
    stats.add_step(StepOutcome(40, 1, 2, 9.0, 0.1, (DraftedPass(0, 2, 1, 2),)))
    assert stats.num_drafted_passes == 1
    assert stats.draft_s == 0.1
    assert stats.verify_cost is None
    assert stats.draft_cost is None
