"""The harness on our models: the same accuracy as our own tasks, from the same items."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from infopt import LLM
from infopt.errors import ConfigError
from infopt.evals.harness.adapter import HarnessModel, sampling_of
from infopt.evals.harness.run import run_harness
from infopt.evals.harness.task_files import local_tasks, write_task_files
from infopt.evals.tasks import TASKS


@dataclass
class Request:
    """What the adapter reads of one of the harness's requests."""

    args: tuple[Any, ...]


@pytest.fixture(scope="module")
def llm(tiny_model_dir):
    model = tiny_model_dir("llama", max_position_embeddings=1024)
    with LLM(str(model), dtype="float32", max_model_len=768, num_kv_pages=256) as llm:
        yield llm


@pytest.fixture(scope="module")
def harness(llm):
    return HarnessModel(llm, use_tqdm=False)


@pytest.mark.parametrize("name", ["arithmetic", "code", "multilingual"])
def test_the_harness_and_our_own_task_agree_on_the_same_items(llm, name):
    kind = TASKS.get(name)
    own = kind().evaluate(llm, num_items=12, seed=0, use_tqdm=False).score
    (found,) = run_harness(llm, [f"infopt_{name}"], limit=12, use_tqdm=False).values()
    metric = "acc" if kind.normalise == "none" else "acc_bytes"
    assert found[f"{metric},none"] == pytest.approx(own)


def test_only_tasks_that_choose_have_files(tmp_path):
    assert {"infopt_arithmetic", "infopt_code", "infopt_multilingual"} <= set(local_tasks())
    assert "infopt_passkey" not in local_tasks()
    (path,) = write_task_files(tmp_path, ["infopt_arithmetic"], num_items=3)
    assert len((tmp_path / "arithmetic.jsonl").read_text().splitlines()) == 3
    assert "infopt_arithmetic" in path.read_text()


def test_likelihoods_are_those_of_scoring(llm, harness):
    pairs = [("one two", " three"), ("", "alone"), ("trailing ", "space")]
    found = harness.loglikelihood([Request(pair) for pair in pairs], disable_tqdm=True)
    score = llm.score(["one two three"], use_tqdm=False)[0]
    start = len(llm.tokenizer.encode("one two"))
    assert found[0][0] == pytest.approx(math.fsum(score.logprobs[start:]))
    assert found[0][1] == all(score.greedy_matches[start:])
    assert all(value < 0 for value, _ in found)


def test_greedy_continuations_are_told(llm, harness):
    text = "def f(x):"
    answer = harness.generate_until([Request((text, {"until": [], "max_gen_toks": 1}))])[0]
    ids = llm.tokenizer.encode(text)
    best = int(llm.logits(ids)[-1].argmax())
    other = (best + 1) % 300
    pairs = [((text, answer), ids, [best]), ((text, "?"), ids, [other])]
    assert [is_greedy for _, is_greedy in harness._loglikelihood_tokens(pairs)] == [True, False]


def test_rolling_likelihood_counts_every_token_once(llm, harness):
    """A text of more than one window: its parts add up to what scoring the windows gives."""
    text = "the quick brown fox jumps over the lazy dog. " * 60
    ids = [harness.prefix_token_id, *harness.tok_encode(text, add_special_tokens=False)]
    assert len(ids) > harness.max_length
    (found,) = harness.loglikelihood_rolling([Request((text,))], disable_tqdm=True)
    step = harness.max_length - 1
    windows = [ids[i : i + harness.max_length] for i in range(0, len(ids) - 1, step)]
    scored = sum(len(window) - 1 for window in windows)
    assert scored == len(ids) - 1
    parts = [math.fsum(s.logprobs[1:]) for s in llm.score(windows, use_tqdm=False)]
    assert found == pytest.approx(math.fsum(parts))


def test_generation_stops_before_its_stop_string(llm, harness):
    prompt = "abc"
    free = harness.generate_until([Request((prompt, {"until": [], "max_gen_toks": 12}))])[0]
    assert free
    stop = free[len(free) // 2]
    cut = harness.generate_until([Request((prompt, {"until": [stop], "max_gen_toks": 12}))])[0]
    assert cut == free[: free.index(stop)]


def test_a_context_that_is_too_long_loses_its_beginning(harness):
    long = "word " * 2000
    (found,) = harness.loglikelihood([Request((long, " end"))], disable_tqdm=True)
    assert math.isfinite(found[0])


def test_sampling_follows_the_task():
    assert sampling_of({"until": "x", "temperature": 0.0}).temperature == 0.0
    assert sampling_of({"do_sample": False, "temperature": 0.7}).temperature == 0.0
    assert sampling_of({"do_sample": True, "temperature": 0.7, "top_p": 0.9}).top_p == 0.9
    assert sampling_of({"until": ["a", "b"]}).stop == ("a", "b")


def test_options_that_would_be_ignored_are_refused():
    with pytest.raises(ConfigError, match="num_beams"):
        sampling_of({"num_beams": 4})


def test_an_unknown_task_is_named(llm):
    with pytest.raises(ConfigError, match="infopt_arithmetik") as error:
        run_harness(llm, ["infopt_arithmetik"], use_tqdm=False)
    assert "infopt_arithmetic" in str(error.value)
