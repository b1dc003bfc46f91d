"""lm-eval's ``local-completions`` model against a live server: it reads what the library computes.

The harness adds up ``token_logprobs`` of echoed prompts, asks for one token more than it wants, and
calls a continuation greedy where its values equal the best alternatives. A server that is off by
one position, or reports values after a filter, gets plausible and wrong scores.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infopt import LLM, SamplingParams

QUESTIONS = [
    {"question": "The quick brown fox", "choices": [" jumps over", " page table"], "gold": 0},
    {"question": "for i in range(10):", "choices": ["\n    print", " Zwölf"], "gold": 0},
    {"question": "A page holds", "choices": [" sixteen tokens.", " a"], "gold": 1},
]
TEXTS = [
    {"text": "A page table maps positions of a sequence to pages. " * 4},
    {"text": "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich."},
]
TASKS: dict[str, dict[str, Any]] = {
    "choose": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    },
    "read": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"until": ["e", "\n\n"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may reach for a hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, Path]:
    """One YAML file per task, over a local file of documents."""
    files = {}
    for name, task in TASKS.items():
        documents = tmp_path / f"{name}.json"
        rows = TEXTS if name == "read" else QUESTIONS
        documents.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
        whole = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"test": str(documents)},
                "cache_dir": str(tmp_path / "datasets"),
            },
            "test_split": "test",
            "num_fewshot": 0,
        } | task
        files[name] = tmp_path / f"{name}.yaml"
        files[name].write_text(yaml.safe_dump(whole), "utf-8")
    return files


@pytest.fixture
def evaluate(
    server: Any, tasks: dict[str, Path], tiny_model_dir: Callable[..., Path]
) -> Callable[..., list[dict[str, Any]]]:
    """Run a task against the server and return its samples in order."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    def run(task: str, **options: Any) -> list[dict[str, Any]]:
        model_args = {
            "model": "tiny",
            "base_url": f"{server.url}/v1/completions",
            "tokenizer": str(tiny_model_dir("llama")),
            "tokenizer_backend": "huggingface",
            "max_length": 512,
            "max_retries": 1,
        } | options
        found: Any = simple_evaluate(
            model="local-completions",
            model_args=model_args,
            tasks=[str(tasks[task])],
            task_manager=TaskManager(include_defaults=False),
            bootstrap_iters=0,
        )
        return sorted(found["samples"][task], key=lambda sample: sample["doc_id"])

    return run


@pytest.fixture(scope="module")
def llm(tiny_model_dir: Callable[..., Path]) -> Iterator[LLM]:
    """The library itself, on the same weights."""
    with LLM(str(tiny_model_dir("llama")), dtype="float32") as made:
        yield made


def continuation_score(llm: LLM, context: str, continuation: str) -> tuple[float, bool]:
    """Return log-probability of a continuation, and whether greedy decoding would write it."""
    start = len(llm.tokenizer.encode(context))
    whole = llm.tokenizer.encode(context + continuation)
    (score,) = llm.score([whole])
    values = score.logprobs[start:]
    return sum(v for v in values if v is not None), all(score.greedy_matches[start:])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 3},
        {"num_concurrent": 4},
        {"tokenized_requests": False},
        {"tokenizer_backend": "auto", "tokenizer": None},  # asks the server for its tokenizer
    ],
    ids=lambda options: ",".join(options) or "plain",
)
def test_loglikelihoods_are_those_of_the_library(evaluate, llm, options):
    for sample, question in zip(evaluate("choose", **options), QUESTIONS, strict=True):
        for found, choice in zip(sample["filtered_resps"], question["choices"], strict=True):
            expected, is_greedy = continuation_score(llm, question["question"], choice)
            assert found[0] == pytest.approx(expected, abs=1e-4)
            assert found[1] == is_greedy


@pytest.mark.slow
def test_the_documented_command(server, tasks):
    """The command line of the page, with a local task; it is told no tokenizer."""
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text("utf-8")
    command = page.partition("```bash\nlm_eval ")[2].partition("```")[0]
    for old, new in (
        ("--tasks TASK", f"--tasks {tasks['choose']}"),
        ("http://127.0.0.1:8000", server.url),
        ("model=smollm2-135m-instruct-q4_1", "model=tiny"),
        ("max_length=2048", "max_length=512"),
    ):
        assert old in command
        command = command.replace(old, new)
    program = [sys.executable, "-m", "lm_eval", *shlex.split(command.replace("\\\n", " "))]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\|choose\s*\|.*\|acc", done.stdout)


def test_greedy_continuations_are_recognised(evaluate, llm, tasks):
    """The flag of a continuation that greedy decoding writes, and of the same one but its end."""
    question = "The quick brown fox"
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    ids = llm.generate([question], params)[0].outputs[0].token_ids
    prompt = llm.tokenizer.encode(question)
    texts = [llm.tokenizer.decode([*ids[:-1], last]) for last in (ids[-1], ids[-1] - 1)]
    # The harness works on text: it must be one that is encoded as it was written.
    assert llm.tokenizer.encode(question + texts[0]) == [*prompt, *ids]
    row = {"question": question, "choices": texts, "gold": 0}
    (tasks["choose"].parent / "choose.json").write_text(json.dumps(row), "utf-8")
    (sample,) = evaluate("choose")
    assert [found[1] for found in sample["filtered_resps"]] == [True, False]


@pytest.mark.parametrize("max_length", [512, 48])
def test_rolling_loglikelihoods(evaluate, llm, max_length):
    """In one window, and in several that do not overlap."""
    samples = evaluate("read", max_length=max_length)
    for sample, row in zip(samples, TEXTS, strict=True):
        ids = llm.tokenizer.encode(row["text"])
        total, window = 0.0, max_length - 2  # one for the token it asks for, one for the context
        for start in range(0, len(ids), window):
            targets = ids[start : start + window]
            end = start + len(targets)
            before = [llm.tokenizer.bos_token_id, *ids][max(end - window, 0) : start + 1]
            (score,) = llm.score([[*before, *targets]])
            total += sum(v for v in score.logprobs[-len(targets) :] if v is not None)
        (found,) = sample["filtered_resps"]
        assert found == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"num_concurrent": 3}, {"tokenized_requests": False}])
def test_generation_until_a_stop_string(evaluate, llm, options):
    params = SamplingParams(temperature=0, max_tokens=12, stop=("e", "\n\n", "</s>"))
    questions = [question["question"] for question in QUESTIONS]
    expected = [output.outputs[0].text for output in llm.generate(questions, params)]
    samples = evaluate("write", **options)
    assert [sample["resps"][0][0] for sample in samples] == expected
    assert any(expected)


def test_a_prompt_scored_without_any_token(server, llm):
    """Some harnesses ask for no token at all: one entry per token of the prompt, no more."""
    ids = llm.tokenizer.encode(QUESTIONS[0]["question"] + QUESTIONS[0]["choices"][0])
    fields = {"temperature": 0, "logprobs": 1, "seed": 1234, "echo": True}
    answer = server.complete([ids], max_tokens=0, **fields)
    values = answer["choices"][0]["logprobs"]["token_logprobs"]
    (score,) = llm.score([ids])
    assert values[0] is None
    assert values[1:] == pytest.approx(score.logprobs[1:], abs=1e-5)
