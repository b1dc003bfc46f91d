"""Passkey retrieval: a number hidden in real text at several depths and lengths.

Finds what per-token averages miss: a cache that lost a page, a window that forgets, eviction that
drops the one line that matters.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from infopt import corpus
from infopt.errors import ConfigError
from infopt.evals.model import EvalModel
from infopt.evals.tasks.base import TASKS, GenerationItem, GenerationTask
from infopt.evals.windows import bos_prefix

DEPTHS = (0.5, 0.1, 0.9, 0.3, 0.7)
"""Where the key is, as a share of the filler; few items take the first ones."""

DEFAULT_LENGTHS = (512, 1024, 2048, 3600)
"""Prompt lengths in tokens."""

MAX_ANSWER_TOKENS = 10
"""Tokens generated; five digits and a space, even with one token per byte."""

INTRO = "There is a pass key hidden in the following text. Remember it.\n\n"
NEEDLE = "\n\nThe pass key is {key}. Remember it: {key} is the pass key.\n\n"
QUESTION = "\n\nWhat is the pass key? The pass key is"

_MIN_FILLER = 32
_NUMBER = re.compile(r"\d+")


@TASKS.register("passkey")
class PasskeyTask(GenerationTask):
    """Repeats a five-digit key found somewhere in the prompt.

    Args:
        lengths: Prompt lengths in tokens; items take them in turn, with another depth each.
    """

    name = "passkey"

    def __init__(self, lengths: Sequence[int] = DEFAULT_LENGTHS) -> None:
        """Keep the lengths."""
        if not lengths:
            raise ConfigError(
                "lengths must hold at least one prompt length.", field="lengths", value=lengths
            )
        self.lengths = tuple(lengths)

    def protocol(self, num_items: int, seed: int) -> str:
        """Return the sentence that reproduces a run."""
        lengths = "+".join(map(str, self.lengths))
        content = corpus.content_hash("docs", "heldout")
        return f"{super().protocol(num_items, seed)}/lengths={lengths}/filler={content}"

    def items(self, llm: EvalModel, num_items: int, seed: int) -> list[GenerationItem]:
        """Return prompts of exactly the lengths asked for, as token ids.

        Raises:
            ConfigError: If a length leaves no room for text around the key.
        """
        rng = random.Random(f"passkey-{seed}")
        filler = llm.tokenizer.encode(corpus.docs_text("heldout"), add_special_tokens=False)
        items = []
        for i in range(num_items):
            round_index, length_index = divmod(i, len(self.lengths))
            length = self.lengths[length_index]
            depth = DEPTHS[(length_index + round_index) % len(DEPTHS)]
            key = str(rng.randint(10_000, 99_999))
            ids = prompt_ids(llm, filler, length=length, depth=depth, key=key, rng=rng)
            name = f"{i}/length={length}/depth={depth}"
            items.append(GenerationItem(name, tuple(ids), key, MAX_ANSWER_TOKENS, stop=("\n",)))
        return items

    def is_correct(self, item: GenerationItem, text: str) -> bool:
        """Compare the first number of the completion with the key."""
        found = _NUMBER.search(text)
        return found is not None and found.group() == item.answer


def prompt_ids(
    llm: EvalModel,
    filler: Sequence[int],
    *,
    length: int,
    depth: float,
    key: str,
    rng: random.Random,
) -> list[int]:
    """Return a prompt of exactly ``length`` tokens with the key at ``depth`` of the filler.

    Raises:
        ConfigError: If ``length`` leaves fewer than 32 tokens of filler, or more than there are.
    """

    def encode(text: str) -> list[int]:
        return llm.tokenizer.encode(text, add_special_tokens=False)

    head, question = [*bos_prefix(llm), *encode(INTRO)], encode(QUESTION)
    needle = encode(NEEDLE.format(key=key))
    num_filler = length - len(head) - len(needle) - len(question)
    if not _MIN_FILLER <= num_filler <= len(filler):
        fixed = length - num_filler
        raise ConfigError(
            f"lengths holds {length}: a passkey prompt takes {fixed + _MIN_FILLER} to "
            f"{fixed + len(filler)} tokens with this tokenizer.",
            field="lengths",
            value=length,
        )
    start = rng.randint(0, len(filler) - num_filler)
    text, cut = filler[start : start + num_filler], round(num_filler * depth)
    return [*head, *text[:cut], *needle, *text[cut:], *question]
