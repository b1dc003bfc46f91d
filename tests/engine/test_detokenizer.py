"""Text from tokens: exact to the byte, stop strings, and what is held back while streaming."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infopt.engine.detokenizer import Detokenizer
from infopt.sampling_params import SamplingParams


class Pieces:
    """A tokenizer whose token ids are indices into a list of byte strings."""

    def __init__(self, pieces: list[bytes], special: tuple[int, ...] = ()) -> None:
        self.pieces, self.special = pieces, special

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special


def stream(
    pieces: list[bytes], special: tuple[int, ...] = (), unchecked: int = 0, **params: Any
) -> tuple[list[str], str | None]:
    """Feed pieces one by one; return the text shown after each (and at the end), and the stop.

    The first ``unchecked`` pieces do not end the text, as before min_tokens.
    """
    made = Detokenizer(Pieces(pieces, special), SamplingParams(**params))
    shown = []
    for index in range(len(pieces)):
        stopped = made.append(index, check_stops=index >= unchecked)
        shown.append(made.text)
        if stopped:
            break
    made.finish()
    shown.append(made.text)
    assert all(b.startswith(a) for a, b in itertools.pairwise(shown)), "text taken back"
    return shown, made.stop_string


def encode(*pieces: str) -> list[bytes]:
    return [piece.encode() for piece in pieces]


# ------------------------------------------------------------------ characters


@pytest.mark.parametrize("character", ["é", "’", "離", "🫠"])
def test_a_character_appears_once_it_is_complete(character: str) -> None:
    raw = character.encode()
    shown, _ = stream([b"a", *(bytes([byte]) for byte in raw), b"b"])
    assert shown == [
        "a",
        *(["a"] * (len(raw) - 1)),
        f"a{character}",
        f"a{character}b",
        f"a{character}b",
    ]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"\xa9"], "\ufffd"),  # a lone continuation byte
        ([b"\xf0"], "\ufffd"),  # the first byte of four, then the end
        ([b"\xf0\x9f", b"\xab"], "\ufffd"),  # three of four
        ([b"ok", b"\xf0", b"x"], "ok\ufffdx"),
        ([b"\xc0\x80"], "\ufffd\ufffd"),  # overlong
    ],
)
def test_bytes_that_are_no_character_become_replacement_marks(pieces, text: str) -> None:
    """Pins: a byte sequence that never becomes valid UTF-8 raised and killed the stream."""
    assert stream(pieces)[0][-1] == text


def test_surrogate_bytes_become_replacement_marks() -> None:
    text = stream([b"\xed", b"\xa0", b"\x80"])[0][-1]
    assert text
    assert set(text) == {"\ufffd"}


@given(st.text(), st.data())
def test_any_split_of_a_text_joins_to_the_text(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))) | {0, len(raw)})
    pieces = [raw[a:b] for a, b in itertools.pairwise(cuts)]
    assert stream(pieces)[0][-1] == text


@given(st.lists(st.binary(max_size=4)))
def test_any_bytes_end_as_their_replacement_decoding(pieces: list[bytes]) -> None:
    assert stream(pieces)[0][-1] == b"".join(pieces).decode(errors="replace")


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (False, "a<eos>b")])
def test_special_tokens_are_left_out_if_asked(skip: bool, text: str) -> None:
    shown, _ = stream(encode("a", "<eos>", "b"), special=(1,), skip_special_tokens=skip)
    assert shown[-1] == text


# ------------------------------------------------------------------ stop strings


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        (("go ", "u", "vw", "x", "yz"), "uvwxyz", "go "),
        (("on", "\n", "Ob", "s:", "x"), "\nObs:", "on"),
    ],
)
def test_the_beginning_of_a_stop_string_is_never_shown(pieces, stop: str, text: str) -> None:
    """Pins: the first part of a stop string over several tokens was already streamed."""
    shown, met = stream(encode(*pieces), stop=stop)
    assert met == stop
    assert set(shown) == {text}


@pytest.mark.parametrize(("include", "text"), [(False, "b"), (True, "b!")])
def test_a_stop_string_may_end_inside_a_token(include: bool, text: str) -> None:
    """Pins: matching was tied to token ends, so a stop inside a token was missed."""
    shown, met = stream([b"b!c"], stop="!", include_stop_str_in_output=include)
    assert (shown[-1], met) == (text, "!")


def test_nothing_is_held_back_without_reason() -> None:
    """Pins: text was delayed by the length of the longest stop string."""
    shown, met = stream(encode("ab", "cd", "ef"), stop=["ZZZZZZZZZZ"])
    assert shown == ["ab", "abcd", "abcdef", "abcdef"]
    assert met is None


def test_only_a_possible_beginning_is_held_back_and_shown_in_the_end() -> None:
    shown, _ = stream(encode("xa", "b", "a", "b"), stop=["abc", "bad"])
    assert shown == ["x", "x", "xa", "xab", "xabab"]
    assert stream(encode("see <ST"), stop="<STOP>")[0] == ["see ", "see <ST"]


def test_a_stop_string_of_an_unfinished_character_waits_for_it() -> None:
    raw = "é".encode()
    shown, met = stream([b"a", raw[:1], raw[1:], b"b"], stop="é")
    assert shown[-1] == "a"
    assert met == "é"


@pytest.mark.parametrize("unchecked", [1, 2, 3, 4])
def test_stops_before_min_tokens_are_text(unchecked: int) -> None:
    """A stop string counts if it ends in a token at or after min_tokens."""
    shown, met = stream(encode("a", "b", "a", "b"), unchecked=unchecked, stop="ab")
    if unchecked < 2:
        assert (shown[-1], met) == ("", "ab")
    elif unchecked < 4:
        assert (shown[-1], met) == ("ab", "ab")
    else:
        assert (shown[-1], met) == ("abab", None)


def test_a_short_stop_before_min_tokens_is_not_found_later() -> None:
    """Pins: the search went back by the longest stop string, found a short one in text that was
    already shown, and took that text back.
    """
    shown, met = stream(encode("x", "y", "z", "LONGER"), unchecked=2, stop=["x", "LONGER"])
    assert shown == ["x", "xy", "xyz", "xyz", "xyz"]
    assert met == "LONGER"


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Cut where the first stop string is complete; of several that end there, the longest."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end - len(stop)], stop


@given(
    text=st.text("abé", max_size=14),
    stops=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3),
    data=st.data(),
)
def test_stops_cut_where_a_search_in_the_whole_text_would(text, stops, data) -> None:
    """However the text is split into tokens; and nothing shown is ever taken back."""
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))) | {0, len(raw)})
    pieces = [raw[a:b] for a, b in itertools.pairwise(cuts)]
    shown, met = stream(pieces, stop=stops)
    assert (shown[-1], met) == reference(text, stops)
    with_stop, _ = stream(pieces, stop=stops, include_stop_str_in_output=True)
    assert with_stop[-1] == shown[-1] + (met or "")


@given(
    pieces=st.lists(st.text("ab", min_size=1, max_size=3), max_size=8),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    unchecked=st.integers(0, 5),
)
def test_min_tokens_with_stops_never_takes_text_back(pieces, stops, unchecked: int) -> None:
    shown, met = stream(encode(*pieces), unchecked=unchecked, stop=stops)
    free = "".join(pieces[:unchecked])
    whole = "".join(pieces)
    matches = [
        (at + len(stop), -len(stop), stop)
        for stop in stops
        for at in range(len(whole))
        if whole.startswith(stop, at) and at + len(stop) > len(free)
    ]
    if matches:
        end, _, stop = min(matches)
        assert (shown[-1], met) == (whole[: end - len(stop)], stop)
    else:
        assert (shown[-1], met) == (whole, None)
