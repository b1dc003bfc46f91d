"""The model ``auto``: who answers, what the answer says about it, and that nothing else changes."""

from __future__ import annotations

import contextlib

import openai
import pytest
from typer.testing import CliRunner

from infopt.cli.main import app
from infopt.config import EngineConfig
from infopt.errors import ConfigError
from infopt.select.routing import (
    CascadePolicy,
    ClassPolicy,
    LengthPolicy,
    PerplexityPolicy,
    PromptClass,
    RouteRequest,
    confidence_of,
    write_policy,
)
from infopt.serve import server as module
from infopt.serve.config import ServeConfig
from infopt.serve.protocol.answers import ChatAnswer, ChatChunk, CompletionAnswer
from infopt.serve.service import Service

PAIR = {"cheap": "small", "strong": "large"}
SHORT, LONG = "one two", "one two three four five six"
LENGTH = LengthPolicy(**PAIR, threshold=len(LONG))
NEVER, ALWAYS = CascadePolicy(**PAIR, threshold=1e6), CascadePolicy(**PAIR, threshold=-1.0)
GREEDY = {"max_tokens": 6, "temperature": 0}


@pytest.fixture
def serve(make_engine, run_service):
    """Factory of servers with a small and a large model and a policy."""
    with contextlib.ExitStack() as stack:

        def start(policy, small=None, **options):
            engines = {"small": make_engine(**(small or {})), "large": make_engine("qwen3")}
            config = ServeConfig(port=0, **options)
            server = stack.enter_context(run_service(Service(engines, config, policy)))
            stack.callback(lambda: [m.engine.check_integrity() for m in _models(server)])
            return server

        yield start


def _models(server):
    return server.service.models.values()


def chat_body(text, model="auto", **more):
    return {"model": model, "messages": [{"role": "user", "content": text}], **GREEDY, **more}


def routed(server):
    """Counts of routed requests by model and reason."""
    lines = server.http.get("/metrics").text.splitlines()
    rows = [line for line in lines if line.startswith("infopt_routed_requests_total{")]
    return {row.split("{")[1].split("}")[0]: float(row.split()[-1]) for row in rows}


def test_the_policy_chooses_and_the_answer_says_so(serve):
    server = serve(LENGTH)
    for prompt, name in ((SHORT, "small"), (LONG, "large")):
        answer = server.post("/v1/completions", model="auto", prompt=prompt, **GREEDY)
        body = answer.json()
        CompletionAnswer.model_validate(body)
        direct = server.post("/v1/completions", model=name, prompt=prompt, **GREEDY)
        assert body["choices"] == direct.json()["choices"]
        assert body["model"] == name
        assert answer.headers["x-infopt-model"] == name
        assert answer.headers["x-infopt-route-reason"] == body["usage"]["route"]["reason"]
        assert body["usage"]["route"]["model"] == name
        assert "x-infopt-model" not in direct.headers
        assert "route" not in direct.json()["usage"]
    assert routed(server) == {
        'model="small",reason="length"': 1,
        'model="large",reason="length"': 1,
    }


def test_chat_and_streams_are_routed_alike(serve):
    server = serve(LENGTH)
    whole = server.post("/v1/chat/completions", **chat_body(LONG))
    ChatAnswer.model_validate(whole.json())
    assert whole.headers["x-infopt-model"] == "large"
    events = server.stream(
        "/v1/chat/completions", **chat_body(LONG, stream_options={"include_usage": True})
    )
    for event in events:
        ChatChunk.model_validate(event)
    text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
    assert text == whole.json()["choices"][0]["message"]["content"]
    assert {event["model"] for event in events} == {"large"}
    assert events[-1]["usage"]["route"] == whole.json()["usage"]["route"]


@pytest.mark.parametrize("policy", [LENGTH, NEVER, ALWAYS], ids=["length", "kept", "escalated"])
def test_the_openai_client(serve, policy):
    client = serve(policy).client
    messages = [{"role": "user", "content": SHORT}]
    options = {"model": "auto", "messages": messages, **GREEDY}
    raw = client.chat.completions.with_raw_response.create(**options)
    answer = raw.parse()
    name = "large" if policy is ALWAYS else "small"
    assert raw.headers["x-infopt-model"] == answer.model == name
    assert answer.usage.route["model"] == name
    assert [m.id for m in client.models.list()] == ["small", "large", "auto"]
    streamed = client.chat.completions.with_raw_response.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    assert streamed.headers["x-infopt-model"] == name
    chunks = list(streamed.parse())
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    completion = client.completions.create(model="auto", prompt=SHORT, **GREEDY)
    assert completion.model == name
    with pytest.raises(openai.NotFoundError, match="small, large, auto"):
        client.chat.completions.create(**(options | {"model": "huge"}))


def test_a_confident_cheap_answer_is_delivered_as_it_is(serve):
    server = serve(NEVER)
    direct = server.post("/v1/completions", model="small", prompt=SHORT, **GREEDY).json()
    answer = server.post("/v1/completions", model="auto", prompt=SHORT, **GREEDY).json()
    assert answer["choices"] == direct["choices"]
    assert "asked_first" not in answer["usage"]["route"]
    assert routed(server) == {'model="small",reason="cascade"': 1}
    assert server.service.models["large"].engine.stats.num_requests == 0


def test_a_doubtful_answer_is_asked_again_and_its_tokens_are_told(serve):
    server = serve(ALWAYS)
    direct = server.post("/v1/completions", model="large", prompt=SHORT, **GREEDY).json()
    cheap = server.post("/v1/completions", model="small", prompt=SHORT, **GREEDY).json()
    answer = server.post("/v1/completions", model="auto", prompt=SHORT, **GREEDY)
    CompletionAnswer.model_validate(answer.json())
    assert answer.json()["choices"] == direct["choices"]
    assert "need" in answer.headers["x-infopt-route-reason"]
    usage = answer.json()["usage"]
    first = usage["route"]["asked_first"]
    assert first["model"] == "small"
    assert first["completion_tokens"] == cheap["usage"]["completion_tokens"]
    assert usage["completion_tokens"] == direct["usage"]["completion_tokens"]


@pytest.mark.parametrize("measure", ["mean_logprob", "margin"])
def test_the_doubt_is_that_of_the_answer(serve, measure):
    """The threshold is put just above and just below what the log-probabilities say."""
    probe = serve(NEVER)
    options = {"model": "small", "prompt": SHORT, "logprobs": 2, **GREEDY}
    logprobs = probe.post("/v1/completions", **options).json()["choices"][0]["logprobs"]
    own = logprobs["token_logprobs"]
    others = [sorted(top.values())[-2] for top in logprobs["top_logprobs"]]
    expected = CascadePolicy(**PAIR, threshold=0.0, measure=measure)
    doubt = expected.need(RouteRequest("", confidence=confidence_of(own, others)))
    for shift, name in ((1e-4, "small"), (-1e-4, "large")):
        server = serve(expected.at(doubt + shift))
        answer = server.post("/v1/completions", model="auto", prompt=SHORT, **GREEDY)
        assert answer.json()["model"] == name


@pytest.mark.parametrize("asked", [None, 0, 1, 4])
def test_the_client_sees_the_logprobs_it_asked_for(serve, asked):
    server = serve(NEVER)
    more = {} if asked is None else {"logprobs": asked}
    bodies = [
        server.post("/v1/completions", model=m, prompt=SHORT, **GREEDY, **more).json()
        for m in ("small", "auto")
    ]
    assert bodies[0]["choices"] == bodies[1]["choices"]
    if asked is not None:
        options = {"logprobs": True, "top_logprobs": asked}
        chats = [
            server.post("/v1/chat/completions", **chat_body(SHORT, model, **options)).json()
            for model in ("small", "auto")
        ]
        assert chats[0]["choices"] == chats[1]["choices"]


def test_several_answers_are_kept_only_if_all_are_sure(serve):
    server = serve(NEVER)
    options = {"prompt": [SHORT, LONG], "n": 2, "max_tokens": 4, "seed": 3}
    kept = server.post("/v1/completions", model="auto", **options).json()
    direct = server.post("/v1/completions", model="small", **options).json()
    assert kept["choices"] == direct["choices"]
    assert len(kept["choices"]) == 4
    again = serve(ALWAYS).post("/v1/completions", model="auto", **options).json()
    assert again["model"] == "large"
    assert again["usage"]["route"]["asked_first"]["completion_tokens"] > 4


def test_perplexity_scores_the_prompt_with_the_cheap_model(serve):
    probe = serve(NEVER)
    options = {"model": "small", "prompt": LONG, "echo": True, "logprobs": 0, "max_tokens": 0}
    scored = probe.post("/v1/completions", **options).json()["choices"][0]["logprobs"]
    values = [value for value in scored["token_logprobs"] if value is not None]
    surprise = -sum(values) / len(values)
    for shift, name in ((1e-3, "small"), (-1e-3, "large")):
        server = serve(PerplexityPolicy(**PAIR, threshold=surprise + shift))
        answer = server.post("/v1/completions", model="auto", prompt=LONG, **GREEDY)
        assert answer.json()["model"] == name
        assert server.post("/v1/chat/completions", **chat_body(LONG)).status_code == 200


def test_classes_send_to_any_model(serve):
    classes = (PromptClass("sum", r"\d \+", model="large"),)
    server = serve(ClassPolicy(**PAIR, classes=classes))
    answer = server.post("/v1/completions", model="auto", prompt="1 + 1", **GREEDY)
    assert answer.headers["x-infopt-route-reason"] == "class:sum"
    server.post("/v1/completions", model="auto", prompt="hello", **GREEDY)
    assert routed(server) == {
        'model="large",reason="class:sum"': 1,
        'model="small",reason="class:other"': 1,
    }


@pytest.mark.parametrize(
    "policy",
    [LENGTH.at(1e6), NEVER, PerplexityPolicy(**PAIR, threshold=1e6)],
    ids=["length", "cascade", "perplexity"],
)
def test_what_does_not_fit_goes_to_the_longer_model(serve, policy):
    server = serve(policy, small={"max_model_len": 16})
    answer = server.post("/v1/completions", model="auto", prompt=LONG * 4, **GREEDY)
    assert answer.status_code == 200
    assert answer.headers["x-infopt-route-reason"] == "too long for small"
    assert routed(server) == {'model="large",reason="too_long"': 1}
    longest = server.service.models["large"].max_model_len
    assert server.http.get("/v1/models/auto").json()["max_model_len"] == longest
    beyond = server.post("/v1/completions", model="auto", prompt="x" * 20 * longest, **GREEDY)
    assert beyond.status_code == 400
    assert beyond.json()["error"]["code"] == "context_length_exceeded"


def test_refusals(serve):
    server = serve(LENGTH)
    for body in ({"prompt": [5, 6]}, {"prompt": [[5], [6]]}):
        answer = server.post("/v1/completions", model="auto", **body)
        assert answer.status_code == 400
        assert "name a model" in answer.json()["error"]["message"]
    assert server.post("/v1/completions", prompt="x").status_code == 400
    refused = server.post("/tokenize", model="auto", prompt="x")
    assert refused.status_code == 404
    assert "stands for several models" in refused.json()["error"]["message"]
    bad = server.post("/v1/completions", model="auto", prompt="x", temperature=-1)
    assert bad.status_code == 400
    assert bad.json()["error"]["param"] == "temperature"


def test_a_prompt_of_one_token_has_no_perplexity(serve):
    server = serve(PerplexityPolicy(**PAIR, threshold=1.0))
    tokenizer = server.service.models["small"].tokenizer
    assert len(tokenizer.encode("x")) == 1
    answer = server.post("/v1/completions", model="auto", prompt="x", **GREEDY)
    assert answer.status_code == 400
    assert "nothing to score" in answer.json()["error"]["message"]


def test_without_a_policy_there_is_no_auto(server):
    assert server.post("/v1/completions", model="auto", prompt="x").status_code == 404
    assert server.http.get("/v1/models/auto").status_code == 404
    assert [m["id"] for m in server.http.get("/v1/models").json()["data"]] == ["tiny"]


def test_a_client_that_hangs_up_aborts_the_cheap_answer(serve, slow, wait):
    server = serve(NEVER)
    engine = server.service.models["small"].engine
    slow(engine, 0.05)
    with pytest.raises(Exception, match="timed out"):
        server.http.post(
            "/v1/completions",
            json={"model": "auto", "prompt": SHORT, "max_tokens": 100, "ignore_eos": True},
            timeout=0.4,
        )
    wait(lambda: not engine.has_unfinished)
    assert server.service.models["large"].engine.stats.num_requests == 0
    wait(lambda: server.service.num_in_flight == 0)


def test_energy_of_both_answers_is_told(serve):
    server = serve(ALWAYS, energy="modelled")
    body = {"model": "auto", "prompt": SHORT, "include_energy": True, **GREEDY}
    usage = server.post("/v1/completions", **body).json()["usage"]
    assert usage["energy"]["joules"] > 0
    assert usage["route"]["asked_first"]["energy"]["joules"] > 0


def test_a_name_in_any_script_travels_in_a_header(make_engine, run_service):
    policy = LengthPolicy(cheap="petit\u00e9\n", strong="\u5927", threshold=1)
    engines = {"petit\u00e9\n": make_engine(), "\u5927": make_engine("qwen3")}
    with run_service(Service(engines, ServeConfig(port=0), policy)) as server:
        answer = server.post("/v1/completions", model="auto", prompt=SHORT, **GREEDY)
        assert answer.json()["model"] == "\u5927"
        assert answer.headers["x-infopt-model"] == r"\u5927"


def test_a_policy_must_name_served_models(make_engine):
    engine = make_engine()
    with pytest.raises(ConfigError, match="'large', which is not served") as error:
        Service({"small": engine}, ServeConfig(), LENGTH)
    assert error.value.field == "route"
    with pytest.raises(ConfigError, match="no model can be called 'auto'"):
        Service({"small": engine, "large": engine, "auto": engine}, ServeConfig(), LENGTH)


def test_a_wrong_policy_is_refused_before_anything_is_loaded(monkeypatch):

    def load(*_: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(module, "load_engines", load)
    with pytest.raises(ConfigError, match="not served"):
        module.run_server([EngineConfig(model="x")], ServeConfig(), names=["small"], policy=LENGTH)


def test_the_command_reads_the_policy(tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(module, "run_server", lambda *_, **options: given.update(options))
    path = write_policy(LENGTH, tmp_path / "policy.yaml")
    result = CliRunner().invoke(app, ["serve", "a", "b", "--route", str(path)])
    assert result.exit_code == 0, result.output
    assert given["policy"] == LENGTH
    assert CliRunner().invoke(app, ["serve", "a", "--route", "absent.yaml"]).exit_code != 0
