import pytest

from infopt.errors import ConfigError, MeasurementError, PromptTooLongError
from infopt.evals.windows import (
    Window,
    bos_prefix,
    check_windows,
    corpus_windows,
    text_windows,
    windows_digest,
)

TEXT = "abcdefghijklmnopqrstuvwxyz"


def pieces(llm, made):
    return [llm.tokenizer.decode(list(w.scored_ids)) for w in made.windows]


def test_disjoint_windows_score_all_but_their_first_token(uniform_llm):
    made = text_windows(uniform_llm, TEXT, context=8)
    assert pieces(uniform_llm, made) == ["bcdefgh", "jklmnop", "rstuvwx"]


def test_overlapping_windows_score_each_token_once_with_context(uniform_llm):
    made = text_windows(uniform_llm, TEXT, context=8, stride=2)
    assert "".join(pieces(uniform_llm, made)) == TEXT[6:]
    assert all(len(w.token_ids) == 8 and w.num_scored == 2 for w in made.windows)


def test_bos_goes_before_each_window_where_the_tokenizer_adds_it(make_bigram):
    llm = make_bigram(adds_bos=True)
    made = text_windows(llm, TEXT, context=8)
    assert bos_prefix(llm) == (256,)
    assert all(w.token_ids[0] == 256 and len(w.token_ids) == 9 for w in made.windows)
    assert pieces(llm, made) == ["abcdefgh", "ijklmnop", "qrstuvwx"]
    assert "bos=1" in made.protocol


def test_a_token_budget_spreads_windows_over_the_text(uniform_llm):
    made = text_windows(uniform_llm, TEXT, context=4, max_tokens=12)
    assert pieces(uniform_llm, made) == ["bcd", "jkl", "vwx"]
    assert "max=12" in made.protocol


def test_protocol_tells_runs_apart(uniform_llm):
    protocols = {
        text_windows(uniform_llm, TEXT, context=c, stride=s, max_tokens=m).protocol
        for c, s, m in [(8, 8, None), (8, 4, None), (4, 4, None), (8, 8, 16)]
    }
    assert len(protocols) == 4


def test_corpus_protocol_names_python_and_content(uniform_llm):
    made = corpus_windows(uniform_llm, "docs", context=64, max_tokens=256)
    assert made.protocol.startswith("docs/ctx=64/stride=64/bos=0/max=256/windows=4/python=3.")
    assert "/sha256=" in made.protocol
    assert {w.source for w in made.windows} == {"docs"}


def test_digest_depends_on_tokens_and_on_what_is_scored():
    window = Window((1, 2, 3), 2)
    assert window.digest == Window((1, 2, 3), 2, source="elsewhere").digest
    others = [Window((1, 2, 4), 2), Window((1, 2, 3), 1), Window((1, 2, 3, 0), 2)]
    assert len({window.digest, *(o.digest for o in others)}) == 4
    assert windows_digest([window, others[0]]) != windows_digest([others[0], window])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"context": 1}, "context"),
        ({"context": 8, "stride": 9}, "stride"),
        ({"context": 8, "stride": 0}, "stride"),
        ({"context": 8, "max_tokens": 7}, "max_tokens"),
    ],
)
def test_impossible_sizes_are_named(uniform_llm, options, field):
    with pytest.raises(ConfigError) as caught:
        text_windows(uniform_llm, TEXT, **options)
    assert caught.value.field == field


def test_text_shorter_than_a_window(uniform_llm):
    with pytest.raises(MeasurementError, match="26 tokens, fewer than one window of 64"):
        text_windows(uniform_llm, TEXT, context=64)


def test_windows_beyond_max_model_len(make_bigram):
    llm = make_bigram(max_model_len=16)
    with pytest.raises(PromptTooLongError, match="max_model_len=16"):
        text_windows(llm, TEXT, context=17)
    with pytest.raises(PromptTooLongError, match="max_model_len=16"):
        check_windows(llm, [Window(tuple(range(17)), 3)])


@pytest.mark.parametrize("windows", [[], [Window((1, 2), 2)], [Window((1, 2), 0)]])
def test_nothing_to_score(uniform_llm, windows):
    with pytest.raises(MeasurementError):
        check_windows(uniform_llm, windows)
