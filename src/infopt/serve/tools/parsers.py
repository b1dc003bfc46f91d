"""Parsers of tool calls, by the form that a family of models writes them in.

A parser takes text in pieces of any size and says what it is. Whatever the pieces are, the events
joined are the same; the whole answer is read by the same parser in one piece. Text that looks like
a call and turns out to be none is content, to the letter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from infopt.registry import Registry
from infopt.serve.tools.deepseek import DeepSeekParser
from infopt.serve.tools.events import Event
from infopt.serve.tools.json_calls import JsonCallParser
from infopt.serve.tools.mistral import BEGIN as MISTRAL_BEGIN
from infopt.serve.tools.mistral import MistralParser


class ToolParser(Protocol):
    """Finds calls in text."""

    def feed(self, text: str) -> list[Event]:
        """Return what is now known about the text so far."""
        ...

    def finish(self) -> list[Event]:
        """Return what was held back; the text is over."""
        ...


PARSERS: Registry[Callable[[], ToolParser]] = Registry("tool parser")


@PARSERS.register("hermes")
def hermes() -> ToolParser:
    """Hermes and Qwen: objects in ``<tool_call>`` tags."""
    return JsonCallParser("<tool_call>", "</tool_call>", at_start=False)


@PARSERS.register("llama")
def llama() -> ToolParser:
    """Llama 3: a bare object with ``parameters``, maybe after a tag; more after semicolons."""
    return JsonCallParser("<|python_tag|>", at_start=True)


@PARSERS.register("mistral")
def mistral() -> ToolParser:
    """Mistral: a list after ``[TOOL_CALLS]``, or name, ``[ARGS]`` and arguments."""
    return MistralParser()


@PARSERS.register("deepseek")
def deepseek() -> ToolParser:
    """DeepSeek V3 and R1: markers of their own around name and arguments."""
    return DeepSeekParser()


@PARSERS.register("generic")
def generic() -> ToolParser:
    """Models without a form of their own: an object, or a list, and nothing else."""
    return JsonCallParser(None, at_start=True)


def parser_for(chat_template: str | None) -> str:
    """Return the name of the parser for the form that a chat template writes."""
    marks = {
        "<tool_call>": "hermes",
        MISTRAL_BEGIN: "mistral",
        DeepSeekParser.BEGIN: "deepseek",
        "<|python_tag|>": "llama",
        '"parameters": ': "llama",
    }
    template = chat_template or ""
    return next((name for mark, name in marks.items() if mark in template), "generic")
