"""Conversations of several turns: a number given in one turn is asked for in the last.

What users notice of a compressed cache first: an assistant that forgets what it was told a few
turns ago. The turn that holds the number moves from item to item, so losses can be told by age.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from infopt import corpus
from infopt.errors import ConfigError
from infopt.evals.model import EvalModel
from infopt.evals.tasks.base import TASKS, GenerationItem, GenerationTask

MAX_ANSWER_TOKENS = 10
"""Five digits and a space, even with one token per byte."""

THINGS = ("locker number", "order number", "booking code", "ticket number", "badge number")

_NUMBER = re.compile(r"\d+")


@TASKS.register("dialogue")
class DialogueTask(GenerationTask):
    """Repeats a five-digit number that the user gave in an earlier turn.

    Args:
        num_turns: Turns before the question.
        turn_chars: Characters of text that the user brings into each of the other turns.
    """

    name = "dialogue"

    def __init__(self, num_turns: int = 4, turn_chars: int = 300) -> None:
        """Keep the shape of the conversations.

        Raises:
            ConfigError: There is no turn, or no text in it.
        """
        for field, value in (("num_turns", num_turns), ("turn_chars", turn_chars)):
            if value < 1:
                raise ConfigError(
                    f"{field} must be at least 1, got {value}.", field=field, value=value
                )
        self.num_turns, self.turn_chars = num_turns, turn_chars

    def protocol(self, num_items: int, seed: int) -> str:
        """Return the sentence that reproduces a run."""
        content = corpus.content_hash("docs", "heldout")
        shape = f"turns={self.num_turns}/chars={self.turn_chars}"
        return f"{super().protocol(num_items, seed)}/{shape}/filler={content}"

    def items(self, llm: EvalModel, num_items: int, seed: int) -> list[GenerationItem]:
        """Return conversations as token ids; the number's turn goes round."""
        rng = random.Random(f"dialogue-{seed}")
        text = corpus.docs_text("heldout")
        items = []
        for index in range(num_items):
            turn, thing = index % self.num_turns, THINGS[index % len(THINGS)]
            number = str(rng.randint(10_000, 99_999))
            messages = self._messages(rng, text, turn, thing, number)
            ids = prompt_ids(llm, messages, f"Your {thing} is")
            name = f"{index}/turn={turn}"
            items.append(GenerationItem(name, tuple(ids), number, MAX_ANSWER_TOKENS, stop=("\n",)))
        return items

    def is_correct(self, item: GenerationItem, text: str) -> bool:
        """Compare the first number of the completion with the one that was given."""
        found = _NUMBER.search(text)
        return found is not None and found.group() == item.answer

    def _messages(
        self, rng: random.Random, text: str, turn: int, thing: str, number: str
    ) -> list[dict[str, str]]:
        messages = []
        for at in range(self.num_turns):
            start = rng.randint(0, len(text) - self.turn_chars)
            asked = f"Here is a text:\n{text[start : start + self.turn_chars].strip()}"
            told = "Thank you, I have read it."
            if at == turn:
                asked = f"My {thing} is {number}. Please remember it."
                told = f"I will remember it: your {thing} is {number}."
            messages += [_message("user", asked), _message("assistant", told)]
        return [*messages, _message("user", f"What is my {thing}?")]


def prompt_ids(llm: EvalModel, messages: Sequence[dict[str, str]], opening: str) -> list[int]:
    """Return a conversation with the beginning of its next answer, as token ids.

    Args:
        llm: The model; without a chat template the turns are written one below the other.
        messages: The turns.
        opening: How the answer begins.
    """
    tokenizer: Any = llm.tokenizer
    if tokenizer.chat_template:
        ids = list(tokenizer.apply_chat_template(list(messages)))
        return [*ids, *tokenizer.encode(opening, add_special_tokens=False)]
    lines = [f"{m['role'].capitalize()}: {m['content']}" for m in messages]
    return tokenizer.encode("\n\n".join([*lines, f"Assistant: {opening}"]))


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
