import pytest

from infopt import LLM
from infopt.errors import ConfigError, MeasurementError, PromptTooLongError
from infopt.evals.tasks.base import (
    TASKS,
    ChoiceItem,
    ChoiceTask,
    GenerationItem,
    GenerationTask,
    encode_choices,
)

ITEMS = [
    ChoiceItem("capital", "The capital of France is", (" Paris", " Rome", " Oslo")),
    ChoiceItem("colour", "The sky is", (" blue", " green", " made of cheese")),
]


class FixedChoices(ChoiceTask):
    name = "fixed"

    def items(self, num_items, seed):
        return ITEMS[:num_items]


class PerByte(FixedChoices):
    normalise = "bytes"


class FixedPrompts(GenerationTask):
    name = "fixed_generate"

    def items(self, llm, num_items, seed):
        return [GenerationItem("a", "say yes", "yes", 4), GenerationItem("b", (72, 105), "no", 4)]


def test_all_tasks_are_registered():
    names = ["arithmetic", "arithmetic_generate", "code", "code_pass_at_1", "dialogue"]
    assert TASKS.names() == [*names, "multilingual", "passkey"]
    assert [TASKS.get(name).name for name in TASKS] == TASKS.names()


def test_an_unknown_task_is_named():
    with pytest.raises(ConfigError, match="Did you mean 'passkey'"):
        TASKS.get("paskey")


def test_the_likeliest_choice_is_taken(make_judge):
    llm = make_judge(lambda text: -0.1 if text.endswith(("Paris", "green")) else -2.0)
    result = FixedChoices().evaluate(llm, num_items=2, use_tqdm=False)
    assert [o.correct for o in result.outcomes] == [True, False]
    assert [o.prediction for o in result.outcomes] == [" Paris", " green"]
    assert result.score == 0.5
    assert result.outcomes[0].margin == pytest.approx(-0.1 * 6 + 2.0 * 5)
    assert llm.batches == [6], "all choices of all items go to the engine together"


def test_length_normalisation_changes_what_wins(make_judge):
    """Per token the long choice is likelier, in total the short one."""
    llm = make_judge(lambda text: -0.5 if "cheese" in text else -1.0)
    plain, per_byte = (
        task.evaluate(llm, num_items=2, use_tqdm=False).outcomes[1].prediction
        for task in (FixedChoices(), PerByte())
    )
    assert (plain, per_byte) == (" blue", " made of cheese")
    assert FixedChoices().protocol(2, 0) != PerByte().protocol(2, 0)


def test_a_tie_is_not_correct(uniform_llm):
    """Pins a score of 100 % for a model without any preference, where the answer comes first."""
    items = [ChoiceItem("tie", "x", (" ab", " cd"))]
    task = type("Tie", (FixedChoices,), {"items": lambda self, num_items, seed: items})()
    result = task.evaluate(uniform_llm, num_items=1, use_tqdm=False)
    assert result.outcomes[0].margin == 0.0
    assert not result.outcomes[0].correct


def test_scoring_starts_where_the_choice_starts(uniform_llm):
    texts, starts = encode_choices(uniform_llm, ITEMS)
    for text, start, choice in zip(
        texts, starts, [c for i in ITEMS for c in i.choices], strict=True
    ):
        assert bytes(text[start:]).decode() == choice


class WholeTexts:
    """Scores whole texts one by one, whatever is asked for: nothing is shared, nothing left out."""

    def __init__(self, llm):
        self._llm = llm

    def __getattr__(self, name):
        return getattr(self._llm, name)

    def score(self, texts, *, start=0, use_tqdm=True):
        self._llm.reset_prefix_cache()
        return [self._llm.score([text], use_tqdm=False)[0] for text in texts]


@pytest.mark.parametrize("name", ["arithmetic", "code", "multilingual"])
def test_results_are_those_of_whole_texts(name):
    """Only the choices are scored, and the choices of an item share its prompt: same bits."""
    options = {"dtype": "float32", "max_model_len": 512, "max_num_batched_tokens": 256}
    with LLM("tiny-dense", **options) as llm:
        task = TASKS.get(name)()
        whole = task.evaluate(WholeTexts(llm), num_items=12, use_tqdm=False)
        llm.reset_prefix_cache()
        before = llm.stats()["cached_tokens"]
        assert task.evaluate(llm, num_items=12, use_tqdm=False) == whole
        assert llm.stats()["cached_tokens"] > before or name == "multilingual", (
            "its prompts are short"
        )


def test_tokens_that_merge_across_the_border_are_scored_for_all_choices(uniform_llm, monkeypatch):
    """Pins choices judged from different points: 'is c' may become one token."""
    merged = {"xab": [1, 9], "xcd": [1, 2, 5], "x": [1, 2]}
    monkeypatch.setattr(uniform_llm.tokenizer, "encode", lambda text: merged[text])
    texts, starts = encode_choices(uniform_llm, [ChoiceItem("i", "x", ("ab", "cd"))])
    assert texts == [[1, 9], [1, 2, 5]]
    assert starts == [1, 1]


@pytest.mark.parametrize("choices", [("a",), ("a", "a"), ("a", "b", "b")])
def test_choices_must_differ(choices):
    with pytest.raises(MeasurementError, match="different choices"):
        ChoiceItem("i", "x", choices)


def test_nan_scores_are_an_error(make_judge):
    llm = make_judge(lambda text: float("nan"))
    with pytest.raises(MeasurementError, match="finite"):
        FixedChoices().evaluate(llm, num_items=1, use_tqdm=False)


def test_generation_judges_the_first_word(make_writer):
    llm = make_writer(lambda prompt: " yes sir" if prompt == "say yes" else " yes")
    result = FixedPrompts().evaluate(llm, num_items=2, use_tqdm=False)
    assert [o.correct for o in result.outcomes] == [True, False]
    assert llm.batches == [2]


@pytest.mark.parametrize("task", [FixedChoices(), FixedPrompts()])
def test_items_beyond_max_model_len(task, make_bigram):
    with pytest.raises(PromptTooLongError, match="max_model_len=5"):
        task.evaluate(make_bigram(max_model_len=5), num_items=2, use_tqdm=False)


@pytest.mark.parametrize("task", [FixedChoices(), FixedPrompts()])
def test_no_items(task, uniform_llm):
    with pytest.raises(ConfigError, match="num_items"):
        task.evaluate(uniform_llm, num_items=0)
