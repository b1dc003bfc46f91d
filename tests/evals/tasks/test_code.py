import gzip
import json

import pytest

from infopt.errors import ConfigError, DependencyError
from infopt.evals.tasks import human_eval
from infopt.evals.tasks.code import CodePassTask, CodeTask
from infopt.evals.tasks.human_eval import problems


def test_all_problems_shortest_first():
    sizes = [len(p.prompt) + len(p.solution) for p in problems()]
    assert len(sizes) == 164
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("seed", [0, 1])
def test_distractors_are_never_the_solution(seed):
    items = CodeTask().items(164, seed)
    for problem, item in zip(problems(), items, strict=True):
        assert item.choices[0] == problem.solution
        assert len({choice.strip() for choice in item.choices}) == 4


def test_the_seed_decides():
    assert CodeTask().items(40, 3) == CodeTask().items(40, 3)
    assert CodeTask().items(40, 3) != CodeTask().items(40, 4)


def test_a_model_that_knows_the_solutions_scores_everything(make_judge):
    known = {p.prompt + p.solution for p in problems()}
    llm = make_judge(lambda text: -0.1 if text in known else -1.0)
    assert CodeTask().evaluate(llm, num_items=40, use_tqdm=False).score == 1.0


def test_pass_at_1_runs_the_tests(make_writer):
    """Solutions of two problems, a wrong one of the third, and one that never ends."""
    answers = {p.prompt: p.solution for p in problems()[:2]}
    answers[problems()[2].prompt] = "    return None\n"
    answers[problems()[3].prompt] = "    while True:\n        pass\n"
    task = CodePassTask(timeout_s=3.0)
    result = task.evaluate(make_writer(answers.__getitem__), num_items=4, use_tqdm=False)
    assert [o.correct for o in result.outcomes] == [True, True, False, False]


def test_more_than_there_are(uniform_llm):
    with pytest.raises(ConfigError, match="num_items=165 is above the 164"):
        CodeTask().items(165, 0)


@pytest.mark.parametrize("num_choices", [2, 8])
def test_the_number_of_choices_is_kept(num_choices):
    items = CodeTask(num_choices).items(164, 0)
    assert {len(item.choices) for item in items} == {num_choices}
    assert CodeTask(num_choices).protocol(1, 0) != CodeTask().protocol(1, 0)


@pytest.mark.parametrize("num_choices", [1, 9])
def test_impossible_numbers_of_choices(num_choices):
    with pytest.raises(ConfigError, match="num_choices"):
        CodeTask(num_choices)


def test_a_missing_package_is_named(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(human_eval, "files", absent)
    with pytest.raises(DependencyError, match="human-eval"):
        human_eval.problems.__wrapped__()


def test_data_come_from_the_package(monkeypatch, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    row = {"task_id": "t", "prompt": "p", "canonical_solution": "s", "test": ""}
    packed = gzip.compress(json.dumps(row | {"entry_point": "f"}).encode())
    (folder / "HumanEval.jsonl.gz").write_bytes(packed)
    monkeypatch.setattr(human_eval, "files", lambda name: tmp_path)
    assert [p.problem_id for p in human_eval.problems.__wrapped__()] == ["t"]
