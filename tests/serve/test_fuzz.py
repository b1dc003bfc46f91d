"""The server against its own description: schemathesis makes requests of it, good and bad.

Whatever comes in, the answer has a documented status, content type and shape (of streams, every
event has), and is no 500; what the description forbids, and who has no key, is refused.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NUM_EXAMPLES = int(os.environ.get("INFOPT_FUZZ_EXAMPLES", "30"))
"""Random requests per route and kind; `make fuzz` asks for many more."""

SEED = os.environ.get("INFOPT_FUZZ_SEED", "1")

# What JSON Schema cannot say (ids of this vocabulary, lengths in tokens, fields that contradict
# each other, expressions that must compile) is a 400 although the schema allows it.
NOT_CHECKED = "positive_data_acceptance"


def headers_of(server: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.service.config.api_key}"}


def test_answers_are_as_described(fuzzed_server: Any, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{fuzzed_server.url}/openapi.json"),
        *("--header", f"Authorization: {headers_of(fuzzed_server)['Authorization']}"),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", str(NUM_EXAMPLES)),
        *("--exclude-checks", NOT_CHECKED, "--continue-on-failure", "--request-timeout", "60"),
        *("--seed", SEED, "--generation-database", "none", "--workers", "1", "--no-color"),
    ]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=3600, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "9 selected" in run.stdout


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these fields, or none."""
    return st.fixed_dictionaries({}, optional=fields)


TEXT = st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable())
JSON_SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, "é"]}}, "required": ["a"]}
FORMS = st.sampled_from(
    [
        {"json": JSON_SCHEMA},
        {"json_object": True},
        {"regex": "[a-z]{1,9}"},
        {"choice": ["yes", "no\n"]},
        {"grammar": 'start: "(" start ")" | "x"'},
    ]
)
SHARED = {
    "max_tokens": st.integers(0, 12),
    "n": st.integers(1, 3),
    "temperature": st.floats(0, 100),
    "top_p": st.floats(0.01, 1),
    "top_k": st.integers(-1, 1000),
    "min_p": st.floats(0, 1),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.01, 100),
    "logit_bias": st.dictionaries(st.integers(0, 319).map(str), st.floats(-100, 100), max_size=4),
    "seed": st.integers(-(2**63), 2**64 - 1),
    "stop": TEXT | st.lists(TEXT, max_size=3),
    "stop_token_ids": st.lists(st.integers(0, 319), max_size=3),
    "include_stop_str_in_output": st.booleans(),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "stream": st.booleans(),
    "user": TEXT,
}
IDS = st.lists(st.integers(0, 319), min_size=1, max_size=20)
PROMPT = TEXT | IDS | st.lists(TEXT, min_size=1, max_size=2) | st.lists(IDS, min_size=1, max_size=2)
COMPLETION = st.builds(
    lambda prompt, fields: {"prompt": prompt} | fields,
    PROMPT,
    some(**SHARED, logprobs=st.integers(0, 64), echo=st.booleans(), structured_outputs=FORMS),
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": JSON_SCHEMA}}
CALL = {"type": "function", "id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}}
MESSAGE = st.one_of(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "developer", "user", "assistant"]),
        TEXT | st.lists(TEXT.map(lambda text: {"type": "text", "text": text}), max_size=2),
    ),
    st.sampled_from(
        [
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "done"},
        ]
    ),
)
NAMED = {"type": "function", "function": {"name": "f"}}
WITH_TOOLS = some(
    tool_choice=st.sampled_from(["auto", "required", "none", NAMED]),
    parallel_tool_calls=st.booleans(),
).map(lambda fields: {"tools": [TOOL]} | fields)
CHAT = st.builds(
    lambda messages, fields, form, top: {"messages": messages} | fields | form | top,
    st.lists(MESSAGE, min_size=1, max_size=2),
    some(**SHARED, include_reasoning=st.booleans()),
    some(structured_outputs=FORMS) | WITH_TOOLS,
    st.just({}) | some(top_logprobs=st.integers(0, 20)).map(lambda top: {"logprobs": True} | top),
)


@pytest.fixture(scope="module")
def described(fuzzed_server: Any) -> Any:
    return schemathesis.openapi.from_url(f"{fuzzed_server.url}/openapi.json")


@pytest.mark.parametrize(
    ("path", "bodies"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)]
)
def test_valid_requests_are_answered(
    fuzzed_server: Any, described: Any, path: str, bodies: st.SearchStrategy[dict[str, Any]]
) -> None:
    """Any combination of what is supported: 200, and the answer has the documented shape."""
    operation = described[path]["POST"]

    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize="INFOPT_FUZZ_SEED" not in os.environ,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(bodies)
    def answered(body: dict[str, Any]) -> None:
        case = operation.Case(body=body, media_type="application/json")
        answer = case.call_and_validate(headers=headers_of(fuzzed_server), timeout=60)
        assert answer.status_code == 200, (body, answer.text)

    answered()
