import json
import re
from dataclasses import replace

import pytest

from infopt.errors import ConfigError, PromptTooLongError
from infopt.evals import suite
from infopt.evals.reference_logits import ReferenceLogits
from infopt.evals.suite import TIERS, run_suite, suite_windows
from infopt.evals.tasks import TASKS
from infopt.evals.tasks.passkey import MAX_ANSWER_TOKENS


def look_up(prompt: str) -> str:
    found = re.findall(r"The pass key is (\d{5})\.", prompt)
    return f" {found[0]}." if found else " 0"


@pytest.fixture
def small(monkeypatch):
    """The screen with fewer items, since the fake model's tokens are single bytes."""
    tier = replace(
        TIERS["screen"],
        tokens_per_kind=512,
        tasks={"code": 3, "passkey": 2},
        passkey_lengths=(256, 512),
    )
    monkeypatch.setattr(suite, "TIERS", {"screen": tier})
    return tier


def test_report_of_a_reference(small, make_bigram):
    llm = make_bigram(complete=look_up)
    data = run_suite(llm, "screen", progress=False).to_dict()
    assert set(data["perplexity"]) == {"docs", "code"}
    assert data["kl_mean"] is data["kl_p99"] is data["top1_agreement"] is None
    assert data["perplexity_ratio"] == {}
    assert data["tasks"]["passkey"] == {"score": 1.0, "low": pytest.approx(0.342, abs=1e-3)} | {
        "high": 1.0,
        "n": 2,
    }
    assert data["tasks"]["code"]["n"] == 3
    assert data["protocol"]["texts"]["docs"].startswith("docs/ctx=256/stride=256/bos=0/max=512")
    assert data["protocol"]["tasks"]["passkey"].startswith("passkey/n=2/seed=0/greedy/")
    json.dumps(data, allow_nan=False)


def test_report_of_a_candidate(small, make_bigram):
    reference, candidate = make_bigram(complete=look_up), make_bigram(noise=0.2, complete=look_up)
    report = run_suite(candidate, "screen", reference=reference, progress=False)
    data = report.to_dict()
    assert data["kl_mean"] > 0
    assert data["kl_p99"] > data["kl_mean"]
    assert 0 < data["top1_agreement"] < 1
    for kind in ("docs", "code"):
        ratio = data["perplexity_ratio"][kind]
        assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
    assert data["fidelity_details"]["num_tokens"] == 2 * 2 * 255
    json.dumps(data, allow_nan=False)
    alone = run_suite(candidate, "screen", progress=False)
    for kind in ("docs", "code"):
        value = report.perplexity[kind].token_perplexity
        assert value == pytest.approx(alone.perplexity[kind].token_perplexity, rel=1e-5)
    assert report.protocol == alone.protocol


def test_the_reference_against_itself_is_exactly_equal(small, make_bigram):
    data = run_suite(make_bigram(), "screen", reference=make_bigram(), progress=False).to_dict()
    assert data["kl_mean"] == 0.0
    assert data["top1_agreement"] == 1.0
    assert data["perplexity_ratio"]["docs"] == {"ratio": 1.0, "low": 1.0, "high": 1.0}


def test_stored_reference_gives_the_same_report(small, make_bigram):
    reference, candidate = make_bigram(), make_bigram(noise=0.2)
    stored = ReferenceLogits.compute(reference, suite_windows(reference, "screen"), use_tqdm=False)
    reports = [
        run_suite(candidate, "screen", reference=r, progress=False).to_dict()
        for r in (reference, stored)
    ]
    assert reports[0] == reports[1]


def test_same_seed_same_report(small, make_bigram):
    reports = [run_suite(make_bigram(), "screen", seed=s, progress=False) for s in (4, 4, 5)]
    assert reports[0].to_dict() == reports[1].to_dict()
    items = [r.to_dict(with_items=True)["tasks"]["passkey"]["items"] for r in reports]
    assert items[0] == items[1]
    assert reports[0].protocol != reports[2].protocol


def test_passkeys_that_do_not_fit_are_left_out_and_the_protocol_says_so(small, make_bigram):
    llm = make_bigram(complete=look_up, max_model_len=1024)
    long = run_suite(llm, "screen", progress=False)
    assert "lengths=256+512/" in long.protocol["tasks"]["passkey"]
    llm.config.max_model_len = 512
    short = suite._passkey_lengths(llm, "screen")
    assert short == (256,)


def test_a_model_too_short_for_the_suite_is_named(small, make_bigram):
    llm = make_bigram(max_model_len=256)
    with pytest.raises(PromptTooLongError, match=f"at least {256 + MAX_ANSWER_TOKENS}"):
        run_suite(llm, "screen", progress=False)


def test_an_unknown_tier_is_named(make_bigram):
    with pytest.raises(ConfigError, match="Did you mean 'screen'"):
        run_suite(make_bigram(), "screan", progress=False)


def test_tiers_name_real_tasks_and_run_no_generated_code():
    assert set(TIERS) == {"screen", "full"}
    for tier in TIERS.values():
        assert set(tier.tasks) <= set(TASKS.names()) - {"code_pass_at_1"}
    assert 2 * TIERS["screen"].tokens_per_kind == 4096
    assert TIERS["screen"].tasks["code"] == 40


def test_a_progress_bar_is_shown_on_demand(small, make_bigram, capsys):
    run_suite(make_bigram(), "screen", reference=make_bigram(), progress=True)
    assert "fidelity" in capsys.readouterr().err
