"""Events are the same however the network cuts their bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infopt.bench.http import sse
from infopt.bench.http.failures import RequestFailedError
from infopt.bench.http.sse import Event, EventParser


def events_of(*parts: bytes) -> list[Event]:
    parser = EventParser()
    return [event for part in parts for event in parser.feed(part)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_comments_and_fields_without_data_are_no_events(end: str) -> None:
    """A client that treated a keep-alive or a `retry` line as an event failed to parse it."""
    lines = [": ping", "", "retry: 3000", "", "", "id: 7", "data: one", "", "event: error"]
    lines += ["data:two", "data: lines", "", "data", "", ""]
    data = end.join(lines).encode()
    assert events_of(data) == [Event("one"), Event("two\nlines", "error")]


@given(
    texts=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1), max_size=4
    ),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    cuts=st.lists(st.integers(0, 200)),
)
def test_any_cut_gives_the_same_events(texts: list[str], end: str, cuts: list[int]) -> None:
    """Pieces of the network end inside lines, characters and line endings."""
    data = "".join(f": x{end}data: {text}{end}{end}" for text in texts).encode()
    places = sorted({min(cut, len(data)) for cut in cuts})
    parts = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    assert events_of(*parts) == [Event(text) for text in texts]


def test_line_feed_of_a_cut_line_ending_is_no_empty_line() -> None:
    """`\\r` at the end of one piece and `\\n` at the start of the next ended the event early."""
    assert events_of(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [Event("a\nb")]


def test_what_has_no_blank_line_behind_it_is_no_event() -> None:
    assert events_of(b"data: whole\n\nda", b"ta: broken off\n") == [Event("whole")]


def test_byte_order_mark_is_skipped() -> None:
    assert events_of(b"\xef\xbb", b"\xbfdata: a\n\n") == [Event("a")]


def test_what_is_no_text_or_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestFailedError, match="UTF-8"):
        events_of(b"data: \xff\n\n")
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 10)
    with pytest.raises(RequestFailedError, match="longer than 10 bytes"):
        events_of(b"data: 1234", b"5678")
