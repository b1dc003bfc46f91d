"""Dialogues: well-formed items, the number in one turn only, and a fair judge."""

import pytest

from infopt.errors import ConfigError
from infopt.evals.tasks import TASKS
from infopt.evals.tasks.base import GenerationItem
from infopt.evals.tasks.dialogue import DialogueTask


class Words:
    """A tokenizer of whole words, with or without a chat template."""

    def __init__(self, chat_template=None):
        self.chat_template, self.words = chat_template, []

    def encode(self, text, add_special_tokens=True):
        ids = []
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
            ids.append(self.words.index(word))
        return ids

    def decode(self, ids):
        return " ".join(self.words[i] for i in ids)

    def apply_chat_template(self, messages):
        return self.encode(" ".join(f"<{m['role']}> {m['content']}" for m in messages))


class Model:
    def __init__(self, template=None):
        self.tokenizer = Words(template)


@pytest.mark.parametrize("template", [None, "a template"])
def test_items_hold_their_number_in_one_turn(template):
    model = Model(template)
    items = DialogueTask(num_turns=3, turn_chars=60).items(model, 6, seed=1)
    assert [item.item_id for item in items] == [f"{i}/turn={i % 3}" for i in range(6)]
    assert len({item.answer for item in items}) == 6
    for index, item in enumerate(items):
        text = model.tokenizer.decode(item.prompt)
        assert text.count(item.answer) == 2  # told, and repeated in the answer
        mark = "<user>" if template else "User:"
        turns = text.split(mark)[1:]
        assert len(turns) == 4
        assert item.answer in turns[index % 3]
        assert text.endswith("is")


def test_items_are_the_same_for_the_same_seed():
    task = TASKS.get("dialogue")()
    first, again = (task.items(Model(), 4, seed=3) for _ in range(2))
    assert [i.answer for i in first] == [i.answer for i in again]
    assert [i.answer for i in task.items(Model(), 4, seed=4)] != [i.answer for i in first]
    assert task.protocol(4, 3) != task.protocol(4, 4)


@pytest.mark.parametrize(
    ("text", "right"), [(" 12345.", True), (" 12346", False), (" none", False), ("12345 6", True)]
)
def test_the_first_number_counts(text, right):
    item = GenerationItem("0", "prompt", "12345", 10)
    assert DialogueTask().is_correct(item, text) is right


def test_a_conversation_needs_turns_and_text():
    with pytest.raises(ConfigError, match="num_turns"):
        DialogueTask(num_turns=0)
    with pytest.raises(ConfigError, match="turn_chars"):
        DialogueTask(turn_chars=0)
