import re
from collections import Counter

import pytest

from infopt.errors import ConfigError, PromptTooLongError
from infopt.evals.tasks.passkey import DEPTHS, MAX_ANSWER_TOKENS, PasskeyTask

LENGTHS = (400, 700)


def find_key(prompt: str) -> str:
    return " " + re.findall(r"The pass key is (\d{5})\.", prompt)[0] + ". Remember"


@pytest.mark.parametrize("adds_bos", [False, True])
def test_prompts_have_exactly_the_lengths_asked_for(make_bigram, adds_bos):
    items = PasskeyTask(LENGTHS).items(make_bigram(adds_bos=adds_bos), 6, seed=0)
    assert [len(item.prompt) for item in items] == [400, 700] * 3
    assert all((item.prompt[0] == 256) == adds_bos for item in items)


def test_the_key_is_there_at_its_depth(make_bigram):
    llm = make_bigram()
    for item in PasskeyTask((2000,)).items(llm, 5, seed=0):
        text = llm.tokenizer.decode(list(item.prompt))
        assert text.count(item.answer) == 2
        depth = float(item.item_id.rpartition("=")[2])
        assert text.index("The pass key is") / len(text) == pytest.approx(depth, abs=0.06)
        assert text.endswith("What is the pass key? The pass key is")


def test_every_length_meets_every_depth(make_bigram):
    items = PasskeyTask((300, 400, 500)).items(make_bigram(), 15, seed=0)
    pairs = Counter(item.item_id.split("/", 1)[1] for item in items)
    assert len(pairs) == 15
    assert {float(p.rpartition("=")[2]) for p in pairs} == set(DEPTHS)


def test_a_model_that_looks_it_up_finds_all(make_writer):
    result = PasskeyTask(LENGTHS).evaluate(make_writer(find_key), num_items=8, use_tqdm=False)
    assert result.score == 1.0


@pytest.mark.parametrize("answer", ["", " the key", " 1234", " 0{0}", " {0}7", " 99999 or {0}"])
def test_what_is_not_the_key_is_wrong(make_writer, answer):
    """Pins a hit by substring: the key must be the whole first number."""
    llm = make_writer(lambda prompt: answer.format(find_key(prompt)[1:6]))
    assert PasskeyTask((400,)).evaluate(llm, num_items=4, use_tqdm=False).score == 0.0


def test_the_seed_decides(make_bigram):
    def ids(seed):
        return [i.prompt for i in PasskeyTask(LENGTHS).items(make_bigram(), 3, seed)]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_too_long_for_the_model(make_bigram):
    llm = make_bigram(max_model_len=400)
    with pytest.raises(PromptTooLongError, match=f"needs {400 + MAX_ANSWER_TOKENS} tokens"):
        PasskeyTask((400,)).evaluate(llm, num_items=1)


@pytest.mark.parametrize("lengths", [(100,), (10_000_000,), ()])
def test_impossible_lengths_are_named(make_bigram, lengths):
    with pytest.raises(ConfigError, match="lengths"):
        PasskeyTask(lengths).items(make_bigram(), 1, seed=0)
