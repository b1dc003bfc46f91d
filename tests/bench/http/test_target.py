"""Who serves, and whose tokens are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from infopt.bench.http import connect
from infopt.bench.http.target import ServerError, root_url
from infopt.bench.http.tokenizer import ServerTokenizer, WordTokenizer
from infopt.errors import ConfigError, WorkloadError

CARDS = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"


def listing(body: bytes) -> list[bytes]:
    return [CARDS % (len(body), body)]


def test_server_names_its_model_and_lends_its_tokenizer(server_url: str) -> None:
    with connect(server_url) as target:
        assert (target.url, target.model) == (server_url, "tiny")
        tokenizer = target.tokenizer
        assert isinstance(tokenizer, ServerTokenizer)
        text = "Über 9 Tische  und\nStühle. " * 9000  # longer than one request may be
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        with pytest.raises(WorkloadError, match="chat template"):
            tokenizer.apply_chat_template([])


def test_unknown_model_is_named_with_what_there_is(server_url: str) -> None:
    with pytest.raises(ConfigError, match=r"'tny'.*Did you mean 'tiny'") as caught:
        connect(server_url, model="tny")
    assert "tiny" in (caught.value.remedy or "")


def test_a_model_must_be_chosen_where_there_are_several(raw_server: Callable[..., str]) -> None:
    url = raw_server(listing(b'{"data": [{"id": "one"}, {"id": "two"}]}'))
    with pytest.raises(ConfigError, match=r"several models.*one, two"):
        connect(url)
    found = connect(url, model="two")  # which has no /tokenize
    assert (found.model, found.tokenizer_source, found.knows_token_ids) == ("two", "words", False)
    assert isinstance(found.tokenizer, WordTokenizer)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([b"HTTP/1.1 401 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"], "--api-key"),
        ([b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"], "OpenAI"),
        (listing(b"[]"), "lists no models"),
        (listing(b"hello"), "lists no models"),
        ([], "cannot be reached"),
    ],
)
def test_what_is_no_such_server_is_told(
    raw_server: Callable[..., str], parts: list[bytes], words: str
) -> None:
    with pytest.raises(ServerError, match=words):
        connect(raw_server(parts))


@pytest.mark.parametrize(
    ("url", "root"),
    [("http://a:1", "http://a:1"), ("https://a/v1/", "https://a"), ("http://a/x/v1", "http://a/x")],
)
def test_addresses(url: str, root: str) -> None:
    assert root_url(url) == root


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "", "http://", "ftp://a"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http address"):
        connect(url)


def test_words_stand_in_for_tokens() -> None:
    words = WordTokenizer()
    ids = words.encode("the cat  saw\nthe cat")
    assert words.decode(ids) == "the cat  saw\nthe cat"
    assert len(ids) == 5
    assert ids[0] == ids[3]
    assert words.decode(words.apply_chat_template([{"content": "a"}, {"content": "b"}])) == "a\nb"


@pytest.mark.parametrize(
    "answer", [httpx.Response(200, json={"count": 2}), httpx.Response(404), httpx.Response(200)]
)
def test_other_routes_of_the_same_name_are_no_tokenizer(answer: httpx.Response) -> None:
    transport = httpx.MockTransport(lambda _: answer)
    http = httpx.Client(transport=transport, base_url="http://test")
    assert ServerTokenizer.find(http, "m") is None
    with pytest.raises(WorkloadError, match="tokenize"):
        ServerTokenizer(http, "m").encode("a")


def test_key_is_sent(server_url: str, make_requests: Any) -> None:
    from infopt.bench.http.target import HttpTarget

    assert HttpTarget("http://a", "m", "k").headers["Authorization"] == "Bearer k"
    assert "Authorization" not in HttpTarget("http://a", "m").headers
