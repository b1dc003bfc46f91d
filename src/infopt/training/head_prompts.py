"""What a model is asked, so that its answers can be learned from: open and grounded questions."""

from __future__ import annotations

import random
from collections.abc import Iterator

from infopt.corpus import documents
from infopt.models.tokenizer import Tokenizer

_SUBJECTS = (
    "the water cycle", "a good night's sleep", "how bridges carry weight", "the Roman Empire",
    "learning a language", "the solar system", "baking bread", "the stock market", "photosynthesis",
    "playing chess", "climate change", "the heart", "writing a novel", "electric cars", "volcanoes",
    "jazz music", "saving money", "the internet", "antibiotics", "time zones", "gardening",
    "the French Revolution", "machine learning", "job interviews", "whales", "renewable energy",
    "prime numbers", "public transport", "healthy food", "the moon", "friendship", "earthquakes",
    "computer viruses", "the printing press", "rainforests", "running a marathon", "coffee",
    "black holes", "democracy", "how planes fly",
)  # fmt: skip
_OPEN = (
    "Explain {} in simple terms.",
    "Write a short story about {}.",
    "Give me five tips about {}.",
    "What are the most important facts about {}?",
    "Write a letter to a friend about {}.",
    "What do people often get wrong about {}?",
    "Write a poem about {}.",
    "Describe {} step by step.",
    "Write a Python function that has to do with {}, and explain it.",
    "Compare two views on {}.",
)
_GROUNDED = (
    "Summarize the following text in a few sentences.",
    "Rewrite the following text in your own words.",
    "Explain what the following is about, and who needs it.",
    "Repeat the following text, but correct any mistake.",
    "List the key points of the following text.",
)
_PASSAGE_CHARS = (300, 900)
_RAW_CHARS = 400


def prompts(tokenizer: Tokenizer, seed: int, max_tokens: int) -> Iterator[list[int]]:
    """Yield prompts without end: open questions, questions about a text, and the text itself.

    Of five, two are open and two grounded; models without a chat template only go on with text.
    The text is the corpus' train split.

    Args:
        tokenizer: Of the model.
        seed: Decides everything.
        max_tokens: Questions that are longer are left out, and texts are cut.
    """
    rng, has_chat = random.Random(seed), tokenizer.chat_template is not None
    texts = [document.text for kind in ("docs", "code") for document in documents(kind, "train")]
    while True:
        kind = rng.randrange(5) if has_chat else 4
        if kind == 4:
            yield tokenizer.encode(_cut(rng.choice(texts), _RAW_CHARS, rng))[:max_tokens]
            continue
        content = _open(rng) if kind < 2 else _grounded(rng, texts)
        ids = tokenizer.apply_chat_template([{"role": "user", "content": content}])
        if len(ids) <= max_tokens:
            yield ids


def _open(rng: random.Random) -> str:
    return rng.choice(_OPEN).format(rng.choice(_SUBJECTS))


def _grounded(rng: random.Random, texts: list[str]) -> str:
    return (
        f"{rng.choice(_GROUNDED)}\n\n{_cut(rng.choice(texts), rng.randint(*_PASSAGE_CHARS), rng)}"
    )


def _cut(text: str, num_chars: int, rng: random.Random) -> str:
    start = rng.randrange(max(len(text) - num_chars, 1))
    return text[start : start + num_chars]
