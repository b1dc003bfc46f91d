"""`infopt generate` on a small random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from infopt import LLM, SamplingParams

GREEDY = ["--temperature", "0", "--max-tokens", "6", "--ignore-eos"]


@pytest.fixture
def expected(tiny: list[str]) -> str:
    """What the library says to the same prompt."""
    with LLM(tiny[1], dtype="float32") as llm:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        return llm.generate("The quick", params, use_tqdm=False)[0].outputs[0].text


def test_prints_what_the_library_generates(run_cli: Any, tiny: list[str], expected: str) -> None:
    result = run_cli("generate", "The quick", *tiny, *GREEDY)
    assert result.stdout == expected + "\n"
    assert "6 generated (length)" in result.stderr


def test_dash_reads_the_prompt_from_stdin(run_cli: Any, tiny: list[str], expected: str) -> None:
    assert run_cli("generate", "-", *tiny, *GREEDY, stdin="The quick").stdout == expected + "\n"


def test_json_holds_the_whole_output(run_cli: Any, tiny: list[str], expected: str) -> None:
    result = run_cli("generate", "The quick", *tiny, *GREEDY, "--json", "--logprobs", "2")
    output = json.loads(result.stdout)
    (completion,) = output["outputs"]
    assert completion["text"] == expected
    assert completion["finish_reason"] == "length"
    assert len(completion["logprobs"]) == len(completion["token_ids"]) == 6
    taken = completion["logprobs"][0][str(completion["token_ids"][0])]
    assert taken["rank"] == 1
    assert bytes(taken["token_bytes"]).decode("utf-8", "replace") == taken["decoded_token"]


def test_several_completions_are_numbered(run_cli: Any, tiny: list[str]) -> None:
    options = ["--n", "3", "--seed", "5", "--max-tokens", "4", "--ignore-eos"]
    first = run_cli("generate", "The quick", *tiny, *options).stdout
    assert [f"-- {i} --" in first for i in range(4)] == [True, True, True, False]
    assert run_cli("generate", "The quick", *tiny, *options).stdout == first


def test_stop_string_never_reaches_the_terminal(
    run_cli: Any, tiny: list[str], expected: str
) -> None:
    stop = expected[-1]
    result = run_cli("generate", "The quick", *tiny, *GREEDY, "--stop", stop)
    assert result.stdout == expected.partition(stop)[0] + "\n"
    assert "(stop)" in result.stderr


def test_chat_uses_the_template(run_cli: Any, tiny: list[str]) -> None:
    args = ["generate", "Hello", *tiny, *GREEDY, "--chat", "--system", "Be kind.", "--json"]
    output = json.loads(run_cli(*args).stdout)
    with LLM(tiny[1], dtype="float32") as llm:
        messages = [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hello"},
        ]
        assert output["prompt_token_ids"] == llm.tokenizer.apply_chat_template(messages)


def test_conversation_keeps_its_history(run_cli: Any, tiny: list[str]) -> None:
    """The second turn must read the first one: it finds its pages in the prefix cache."""
    result = run_cli(
        "generate", "--chat", *tiny, *GREEDY, "--block-size", "4", stdin="Hi\nAnd you?\n"
    )
    turns = [line for line in result.stderr.splitlines() if "generated" in line]
    assert len(turns) == 2
    assert "cached" not in turns[0]
    assert "cached" in turns[1]


def test_conversation_survives_a_turn_that_does_not_fit(run_cli: Any, tiny: list[str]) -> None:
    stdin = f"Hi\n{'too long ' * 200}\nStill there?\n/reset\nHi\n"
    result = run_cli("generate", "--chat", *tiny, *GREEDY, "--max-model-len", "128", stdin=stdin)
    turns = [line for line in result.stderr.splitlines() if "generated" in line]
    assert result.stderr.count("Error:") == 1
    assert "max_model_len" in result.stderr
    assert len(turns) == 3
    num_prompt_tokens = [int(turn.split()[0]) for turn in turns]
    assert num_prompt_tokens[0] == num_prompt_tokens[2] < num_prompt_tokens[1]


def test_options_win_over_the_config_file(run_cli: Any, tiny: list[str], tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump({"model": tiny[1], "dtype": "float32", "max_model_len": 4}))
    prompt = "The quick brown fox jumps"
    message = run_cli("generate", prompt, "--config", str(path), *GREEDY, ok=False).output
    assert "max_model_len" in message
    run_cli("generate", prompt, "--config", str(path), "--max-model-len", "64", *GREEDY)


def test_config_file_may_be_a_recommendation(
    run_cli: Any, tiny: list[str], tmp_path: Path, expected: str
) -> None:
    path = tmp_path / "recommendation.yaml"
    config = {"model": tiny[1], "dtype": "float32"}
    path.write_text(yaml.safe_dump({"schema_version": 1, "status": "chosen", "config": config}))
    assert run_cli("generate", "The quick", "-c", str(path), *GREEDY).stdout == expected + "\n"
    path.write_text(yaml.safe_dump({"reason": "Nothing was fast enough.", "config": None}))
    message = run_cli("generate", "The quick", "-c", str(path), ok=False).output
    assert "Nothing was fast enough." in message


def test_unknown_key_in_a_config_file(run_cli: Any, tiny: list[str], tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text("shceduling: static\n")
    message = run_cli("generate", "x", "--config", str(path), ok=False).output
    assert "shceduling" in message
    assert "scheduling" in message
    path.write_text("- a list\n")
    assert "mapping" in run_cli("generate", "x", "--config", str(path), ok=False).output
    path.write_text("a: [\n")
    assert "YAML" in run_cli("generate", "x", "--config", str(path), ok=False).output
