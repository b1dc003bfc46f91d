"""`LLM` with a form of the output: enforced for every prompt by itself, refused by name."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest

from infopt import LLM, SamplingParams, StructuredOutputsParams
from infopt.errors import ConfigError, InfoptError, SamplingParamsError
from infopt.structured import StructuredOutputError

USER = [{"role": "user", "content": "add two numbers"}]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "Ärger"]}, "n": {"type": "integer", "maximum": 9}},
    "required": ["colour", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tiny_model_dir) -> Iterator[LLM]:
    with LLM(str(tiny_model_dir("llama")), dtype="float32", backend="reference") as model:
        yield model
        assert model.engine.cache.pool.num_used == 0


def text_of(output: Any) -> str:
    assert output.outputs[0].finish_reason == "stop"
    return output.outputs[0].text


def sampled(**form: Any) -> SamplingParams:
    forms = StructuredOutputsParams(**form) if form else None
    return SamplingParams(seed=3, max_tokens=150, structured_outputs=forms)


@pytest.mark.parametrize(
    ("form", "is_right"),
    [
        ({"json": SCHEMA}, lambda t: set(json.loads(t)) == {"colour", "n"}),
        ({"json": json.dumps(SCHEMA)}, lambda t: set(json.loads(t)) == {"colour", "n"}),
        ({"regex": "[0-9]{3}-[a-f]"}, lambda t: len(t) == 5 and t[3] == "-"),
        ({"choice": ["yes", "no"]}, lambda t: t in ("yes", "no")),
        (
            {"grammar": 'start: "a" "b"+ "c"'},
            lambda t: re.fullmatch("ab+c", t),
        ),
    ],
)
def test_every_form_is_enforced(llm: LLM, form: dict[str, Any], is_right: Any) -> None:
    (output,) = llm.generate(["def add(a, b):"], sampled(**form))
    assert is_right(text_of(output))


def test_prompts_of_one_batch_have_their_own_forms(llm: LLM) -> None:
    """The form of one request must not reach the next one."""
    params = [sampled(choice=["yes"]), sampled(), sampled(json=SCHEMA)]
    together = llm.generate(["a", "a", "a"], params)
    alone = [llm.generate(["a"], param)[0] for param in params]
    assert [o.outputs[0].token_ids for o in together] == [o.outputs[0].token_ids for o in alone]
    assert text_of(together[0]) == "yes"
    assert json.loads(text_of(together[2]))["colour"] in ("red", "Ärger")


def test_n_completions_all_obey(llm: LLM) -> None:
    (output,) = llm.generate(["a"], sampled(json=SCHEMA).replace(n=4))
    assert len({c.text for c in output.outputs}) > 1
    assert all(json.loads(c.text)["n"] <= 9 for c in output.outputs)


def test_chat_takes_a_response_format(llm: LLM) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    (output,) = llm.chat(USER, sampled(), response_format=form)
    assert json.loads(text_of(output))["n"] <= 9
    plain = llm.chat(USER, sampled())[0].outputs[0].token_ids
    free = llm.chat(USER, sampled(), response_format={"type": "text"})
    assert free[0].outputs[0].token_ids == plain
    (output,) = llm.chat(USER, sampled(), response_format={"type": "json_object"})
    assert output.outputs[0].text.startswith("{")


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"type": "yaml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "text", "json_schema": {"schema": {}}}, "response_format.json_schema"),
        ({"type": "json_object", "schema": {}}, "schema"),
        ("json", "response_format"),
        ({"type": "json_schema", "json_schema": {"schema": {"not": {}}}}, "not"),
    ],
)
def test_bad_formats_are_refused_before_anything_runs(llm: LLM, form: Any, field: str) -> None:
    before = llm.engine.stats.num_steps
    with pytest.raises(InfoptError) as caught:
        llm.chat(USER, sampled(), response_format=form)
    assert caught.value.field == field
    assert llm.engine.stats.num_steps == before
    assert not llm.engine.has_unfinished


def test_two_forms_contradict_each_other(llm: LLM) -> None:
    with pytest.raises(StructuredOutputError, match="cannot be combined"):
        llm.chat(USER, sampled(choice=["a"]), response_format={"type": "json_object"})


def test_one_bad_form_means_that_nothing_runs(llm: LLM) -> None:
    params = [sampled(choice=["a"]), sampled(json={"type": "object", "uniqueItems": True})]
    with pytest.raises(StructuredOutputError) as caught:
        llm.generate(["a", "b"], params)
    assert caught.value.field == "uniqueItems"
    assert not llm.engine.has_unfinished


@pytest.mark.parametrize(
    "form", [{}, {"regex": "a", "choice": ["b"]}, {"json_object": True, "grammar": 'start: "a"'}]
)
def test_exactly_one_form(form: dict[str, Any]) -> None:
    with pytest.raises(SamplingParamsError) as caught:
        StructuredOutputsParams(**form)
    assert caught.value.field == "structured_outputs"


def test_text_that_is_no_schema(llm: LLM) -> None:
    with pytest.raises(StructuredOutputError, match="not JSON"):
        llm.generate(["a"], sampled(json="{"))


def test_params_survive_plain_data_and_pickling() -> None:
    for params in (sampled(json=SCHEMA), sampled(choice=["a", "b"]), sampled(json_object=True)):
        assert SamplingParams.from_dict(params.to_dict()) == params
        assert pickle.loads(pickle.dumps(params)) == params
        json.dumps(params.to_dict())
    with pytest.raises(ConfigError, match="'regex'"):
        SamplingParams(structured_outputs={"regx": "a"})  # type: ignore[arg-type]
    with pytest.raises(SamplingParamsError):
        SamplingParams(structured_outputs="json")  # type: ignore[arg-type]


def test_an_engine_alone_does_not_ignore_a_form(llm: LLM) -> None:
    """It knows constraints only: a form that nobody compiled would be lost without a word."""
    with pytest.raises(SamplingParamsError, match="structured_outputs"):
        llm.engine.add_request("x", [5], sampled(regex="a"))
