"""The openai package, as people use it."""

from __future__ import annotations

import asyncio

import openai
import pytest

from infopt.cli.values import parse_mapping

MESSAGES = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Name a colour."},
]


def test_whole(server):
    answer = server.client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True
    )
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.completion_tokens <= 5
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens


def test_stream(server):
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "seed": 1}
    whole = server.client.chat.completions.create(**options)
    stream = server.client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("form", ["auto", '{"method": "ngram", "prompt_lookup_min": 1}'])
def test_speculation_streams_the_same_text(server, start_server, form):
    """Methods as the command line reads them; tokens of one step may come in one chunk."""
    speculating = start_server(
        engine={"speculative": parse_mapping([form], "speculative", "method")}
    )
    messages = [{"role": "user", "content": "one two three one two three one two"}]
    options = {"model": "tiny", "messages": messages, "max_tokens": 48}
    for sampling in ({"temperature": 0}, {"temperature": 1, "seed": 5}):
        plain = server.client.chat.completions.create(**options, **sampling)
        stream = speculating.client.chat.completions.create(
            **options, **sampling, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == plain.choices[0].message.content
        assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
    assert speculating.engine.draft_stats.draft_s > 0


def test_async_stream(server):
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=8, temperature=0, stream=True
            )
            return [c.choices[0].delta.content or "" async for c in stream if c.choices]

    whole = server.client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=8, temperature=0
    )
    assert "".join(asyncio.run(run())) == whole.choices[0].message.content


def test_completions_and_extra_fields(server):
    answer = server.client.completions.create(
        model="tiny",
        prompt="The quick",
        max_tokens=4,
        echo=True,
        logprobs=1,
        extra_body={"top_k": 1, "ignore_eos": True},
    )
    assert answer.choices[0].text.startswith("The quick")
    assert answer.usage.completion_tokens == 4


def test_errors_are_of_the_clients_classes(server):
    with pytest.raises(openai.NotFoundError):
        server.client.chat.completions.create(model="nothing", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    assert caught.value.param == "temperature"


def test_models(server):
    assert [model.id for model in server.client.models.list()] == ["tiny"]


def test_leaving_a_stream_frees_its_place(server, wait):
    stream = server.client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait(lambda: not server.engine.has_unfinished)
