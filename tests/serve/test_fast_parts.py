"""The fast HTTP parser and event loop are used, and missing ones are announced."""

from __future__ import annotations

import logging
import sys

import pytest

from infopt.serve.fast_parts import choose_loop, choose_parser


def test_the_server_uses_the_fast_parts(server):
    assert server.server.config.http == "httptools"
    assert server.server.config.loop == "uvloop"


@pytest.mark.parametrize(
    ("module", "choose", "slower"),
    [("httptools", choose_parser, "h11"), ("uvloop", choose_loop, "asyncio")],
)
def test_a_missing_part_is_announced(monkeypatch, caplog, module, choose, slower):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with caplog.at_level(logging.WARNING, "infopt"):
        assert choose() == slower
    assert module in caplog.text


def test_a_server_without_them_answers(start_server, monkeypatch):
    for module in ("httptools", "uvloop"):
        monkeypatch.setitem(sys.modules, module, None)
    server = start_server()
    assert (server.server.config.http, server.server.config.loop) == ("h11", "asyncio")
    assert server.complete([5], max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"] == 2
