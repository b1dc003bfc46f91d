import random
import re

import pytest

from infopt.errors import ConfigError
from infopt.evals.tasks.multilingual import LANGUAGES, MultilingualTask, _language_items

ITEMS = [item for tag in LANGUAGES for item in _language_items(tag, random.Random(0))]


def test_choices_are_right_and_different():
    by_id = {item.item_id: item for item in ITEMS}
    assert by_id["fr/month/3"].choices[0] == ' "March"'
    assert by_id["fr/month/3"].prompt == 'The French word "mars" means'
    assert all(len(set(item.choices)) == 4 for item in ITEMS)


def test_choices_are_of_one_kind():
    months = {c for item in ITEMS if "/month/" in item.item_id for c in item.choices}
    assert len(months) == 12


def test_no_item_is_answered_by_copying():
    for item in ITEMS:
        word = re.search('"(.+)"', item.prompt)
        assert word is not None
        assert word.group(1).casefold() != item.choices[0].strip(' "').casefold()


def test_all_languages_take_part():
    assert len({item.item_id for item in ITEMS}) == len(ITEMS)
    assert {item.item_id.split("/")[0] for item in ITEMS} == set(LANGUAGES)


def test_the_seed_decides():
    task = MultilingualTask()
    assert task.items(30, seed=1) == task.items(30, seed=1)
    assert task.items(30, seed=1) != task.items(30, seed=2)
    assert "babel=" in task.protocol(30, 1)


def test_more_than_there_are():
    assert len(MultilingualTask().items(len(ITEMS), seed=0)) == len(ITEMS)
    with pytest.raises(ConfigError, match=f"is above the {len(ITEMS)} multilingual items"):
        MultilingualTask().items(len(ITEMS) + 1, seed=0)


def test_a_model_that_translates_scores_everything(make_judge):
    answers = {item.prompt + item.choices[0] for item in MultilingualTask().items(40, seed=5)}
    llm = make_judge(lambda text: -0.1 if text in answers else -1.0)
    assert MultilingualTask().evaluate(llm, num_items=40, seed=5, use_tqdm=False).score == 1.0
