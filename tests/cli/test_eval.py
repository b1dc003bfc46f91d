"""``infopt eval``: both ways print what they measured."""

from __future__ import annotations

import json

import pytest

from infopt.cli.eval import _harness_table, _suite_table
from infopt.evals.harness import run as harness


class FakeLLM:
    """Stands for a loaded model."""

    def __init__(self, config) -> None:
        self.config = config

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *error) -> None:
        pass


def test_tasks_of_the_harness_run_on_the_configuration(run_cli, monkeypatch, tmp_path):
    seen = {}

    def fake(llm, tasks, **options):
        seen.update(config=llm.config, tasks=tasks, **options)
        return {"infopt_code": {"acc,none": 0.5, "acc_stderr,none": 0.1, "alias": "infopt_code"}}

    monkeypatch.setattr("infopt.llm.LLM", FakeLLM)
    monkeypatch.setattr(harness, "run_harness", fake)
    path = tmp_path / "recommendation.yaml"
    path.write_text("config: {model: some-model, max_num_seqs: 3}")
    result = run_cli(
        "eval", "--config", str(path), "--tasks", "infopt_code, piqa", "--limit", "5", "--json"
    )
    assert json.loads(result.stdout)["infopt_code"]["acc,none"] == 0.5
    assert seen["tasks"] == ["infopt_code", "piqa"]
    assert seen["limit"] == 5
    assert seen["config"].max_num_seqs == 3


def test_without_tasks_the_own_suite_runs(run_cli, monkeypatch):
    class Report:
        def to_dict(self):
            task = {"score": 0.5, "low": 0.3, "high": 0.7, "n": 40}
            return {"perplexity": {"docs": 13.5}, "tasks": {"arithmetic": task}}

    monkeypatch.setattr("infopt.llm.LLM", FakeLLM)
    monkeypatch.setattr("infopt.evals.suite.run_suite", lambda llm, tier: Report())
    result = run_cli("eval", "--model", "some-model")
    for words in ("13.500", "50.0%", "30.0% to 70.0%", "40"):
        assert words in result.stdout


def test_tables_hold_every_metric_once():
    rows = _harness_table(
        {"t": {"acc,none": 0.25, "acc_stderr,none": 0.05, "alias": "t", "sample_len": 4}}
    )
    assert rows.row_count == 1
    suite = {"perplexity": {"docs": 2.0, "code": 3.0}, "tasks": {}}
    assert _suite_table(suite).row_count == 2


def test_an_impossible_limit_is_refused(run_cli):
    run_cli("eval", "--limit", "0", ok=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--limit", "5"), "--limit 5 needs --tasks"),
        (("--num-fewshot", "0"), "--num-fewshot 0 needs --tasks"),
        (("--tasks", ""), "names no task"),
        (("--tasks", " , "), "names no task"),
    ],
)
def test_options_that_would_change_nothing_are_refused(run_cli, monkeypatch, options, words):
    """Pins: `--limit` without tasks measured everything, and no task ended in the harness."""
    monkeypatch.setattr("infopt.llm.LLM", None)
    assert words in run_cli("eval", *options, ok=False).output
