"""``/v1/completions`` against the engine's own answers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from infopt.sampling_params import SamplingParams

PATH = "/v1/completions"
PROMPT = "The quick brown fox"


def joined(events: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(c["text"] for event in events for c in event["choices"] if c["index"] == index)


def test_forms_of_prompt_agree(server):
    ids = server.tokenizer.encode(PROMPT)
    options = {"max_tokens": 6, "temperature": 0}
    texts = [
        server.complete(prompt, **options)["choices"][0]["text"]
        for prompt in (PROMPT, [PROMPT], ids, [ids])
    ]
    assert len(set(texts)) == 1
    assert texts[0]


def test_stream_equals_whole(server):
    options: dict[str, Any] = {"prompt": [PROMPT, "A page"], "n": 2, "seed": 3, "max_tokens": 7}
    whole = server.complete(**options)
    events = server.stream(PATH, stream_options={"include_usage": True}, **options)
    assert [joined(events, i) for i in range(4)] == [c["text"] for c in whole["choices"]]
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3]
    assert events[-1]["choices"] == []
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [events[-1]["usage"][k] for k in counts] == [whole["usage"][k] for k in counts]
    assert all(event["usage"] is None for event in events[:-1])


def test_streamed_usage_counts_each_token_once(server):
    """Summing the cumulative lengths once reported a multiple of the real count."""
    options = {"max_tokens": 7, "ignore_eos": True, "temperature": 0}
    events = server.stream(PATH, prompt=PROMPT, stream_options={"include_usage": True}, **options)
    usage = events[-1]["usage"]
    assert usage["completion_tokens"] == 7
    assert usage["total_tokens"] == usage["prompt_tokens"] + 7
    assert server.complete(PROMPT, **options)["usage"]["completion_tokens"] == 7


def test_usage_with_n_counts_a_prompt_once(server):
    """The prompt was counted once per answer, or n was quietly 1."""
    ids = [10, 11, 12, 13, 14, 15]
    options = {"n": 3, "max_tokens": 4, "ignore_eos": True}
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    usage = server.complete(ids, **options)["usage"]
    assert [usage[k] for k in counts] == [6, 12, 18]
    answer = server.complete([ids, [16, 17, 18, 19, 20, 21]], **options)
    assert [answer["usage"][k] for k in counts] == [12, 24, 36]
    assert [c["index"] for c in answer["choices"]] == list(range(6))


def test_cached_tokens_are_reported(server):
    ids = list(range(10, 10 + 40))
    first = server.complete(ids, max_tokens=1)["usage"]["prompt_tokens_details"]
    second = server.complete(ids, max_tokens=1)["usage"]["prompt_tokens_details"]
    assert (first["cached_tokens"], second["cached_tokens"]) == (0, 32)


def test_fewer_answers_than_n_never_happen(server):
    """Answers of different natural lengths: each ends for itself and all are there."""
    for seed, n in itertools.product(range(4), (3, 5)):
        answer = server.complete([5, 6], n=n, seed=seed, max_tokens=12, temperature=3.0)
        assert [c["index"] for c in answer["choices"]] == list(range(n))
        assert all(c["finish_reason"] in ("stop", "length") for c in answer["choices"])


def test_seed_repeats_over_http(server):
    options = {"seed": 2024, "temperature": 0.7, "max_tokens": 24}
    assert len({server.complete(PROMPT, **options)["choices"][0]["text"] for _ in range(2)}) == 1
    options |= {"n": 3, "temperature": 5.0}
    lists = [[c["text"] for c in server.complete(PROMPT, **options)["choices"]] for _ in range(2)]
    assert lists[0] == lists[1]
    assert len(set(lists[0])) > 1


@pytest.mark.parametrize("streams", [False, True])
def test_prompt_that_ends_inside_a_character_does_not_come_back(server, streams):
    """A prompt of ids cut inside a character made the first delta repeat the prompt."""
    ids = server.tokenizer.encode("Hello world €")[:-1]
    options = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    whole = server.complete(ids, **options)["choices"][0]["text"]
    assert "Hello" not in whole
    if streams:
        assert joined(server.stream(PATH, prompt=ids, **options)) == whole


class TestScoring:
    def test_prompt_alone_and_with_one_token(self, server):
        """lm-eval sends max_tokens 1 (or 0) with echo: entries for all tokens, the first null."""
        ids = [40, 41, 42, 43, 44]
        for num_new in (0, 1):
            answer = server.complete(ids, echo=True, logprobs=1, max_tokens=num_new, temperature=0)
            choice = answer["choices"][0]
            values = choice["logprobs"]["token_logprobs"]
            assert len(values) == 5 + num_new
            assert values[0] is None
            assert choice["logprobs"]["top_logprobs"][0] is None
            assert all(value < 0 for value in values[1:])
            assert answer["usage"]["completion_tokens"] == num_new
            assert choice["finish_reason"] == "length"
            assert choice["text"].startswith(server.tokenizer.decode(ids))

    def test_values_are_those_of_the_library(self, server):
        ids = server.tokenizer.encode(PROMPT)
        answer = server.complete(ids, echo=True, logprobs=2, max_tokens=0)
        logprobs = answer["choices"][0]["logprobs"]
        rows = server.engine.all_logits(ids).log_softmax(-1)
        for at in range(1, len(ids)):
            expected = float(rows[at - 1, ids[at]])
            assert logprobs["token_logprobs"][at] == pytest.approx(expected, abs=1e-5)
            best = sorted(logprobs["top_logprobs"][at].values(), reverse=True)[0]
            assert best == pytest.approx(float(rows[at - 1].max()), abs=1e-5)

    def test_greedy_flag_of_harnesses(self, server):
        """Harnesses compare a token's value with the largest of its alternatives."""
        answer = server.complete(PROMPT, logprobs=1, max_tokens=6, temperature=0)
        logprobs = answer["choices"][0]["logprobs"]
        for value, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
            assert value == max(top.values())

    @pytest.mark.parametrize("num_tokens", [33, 16, 15])
    def test_twice_with_a_warm_prefix_cache(self, server, num_tokens):
        """Cached positions have no logits: the second request once failed."""
        ids = list(range(20, 20 + num_tokens))
        first, second = (
            server.complete(ids, echo=True, logprobs=1, max_tokens=1, temperature=0)["choices"][0]
            for _ in range(2)
        )
        assert len(second["logprobs"]["token_logprobs"]) == num_tokens + 1
        assert first["logprobs"] == second["logprobs"]

    def test_all_values_are_finite(self, server):
        """Minus infinity cannot be written as JSON (`complete` parses strictly)."""
        answer = server.complete(
            PROMPT, echo=True, logprobs=2, temperature=0.8, top_k=2, max_tokens=4
        )
        for top in answer["choices"][0]["logprobs"]["top_logprobs"][1:]:
            assert all(value >= -9999 for value in top.values())

    def test_stream_has_the_same_lists(self, server):
        options = {"prompt": PROMPT, "echo": True, "logprobs": 2, "max_tokens": 5, "n": 2}
        options |= {"seed": 1}
        whole = server.complete(**options)["choices"]
        events = server.stream(PATH, **options)
        for choice in whole:
            pieces = [c for e in events for c in e["choices"] if c["index"] == choice["index"]]
            assert "".join(p["text"] for p in pieces) == choice["text"]
            for key, values in choice["logprobs"].items():
                assert [v for p in pieces for v in p["logprobs"][key]] == values

    def test_offsets_point_into_the_text(self, server):
        answer = server.complete("Zwölf Boxkämpfer", echo=True, logprobs=0, max_tokens=0)
        choice = answer["choices"][0]
        logprobs = choice["logprobs"]
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            if not token.startswith("bytes:"):
                assert choice["text"][offset:].startswith(token)

    def test_parts_of_a_character_stay_apart(self, server, script, words):
        """Part of a character was shown as an empty string, as if tokens were decoded in a row."""
        ids = words(b"\xe2\x80", b"\x9c")
        script(ids)
        answer = server.complete([5], max_tokens=2, logprobs=2)
        choice = answer["choices"][0]
        assert choice["text"] == "\u201c"
        assert choice["logprobs"]["tokens"] == ["bytes:\\xe2\\x80", "bytes:\\x9c"]


class TestLengths:
    def test_prompt_and_max_tokens_beyond_the_model(self, server):
        """The message once blamed a context length that was the limit minus max_tokens."""
        answer = server.post(PATH, prompt=[5] * 9, max_tokens=508)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert all(number in error["message"] for number in ("512", "9", "508"))
        assert error["code"] == "context_length_exceeded"

    @pytest.mark.parametrize("streams", [False, True])
    @pytest.mark.parametrize("num_tokens", [512, 513, 5120])
    def test_prompt_beyond_the_model(self, server, num_tokens, streams):
        """One error whatever the length, and its status is sent before a stream begins."""
        for warm in (False, True):
            if warm:
                server.complete([5] * 511, max_tokens=1)
            answer = server.post(PATH, prompt=[5] * num_tokens, max_tokens=1, stream=streams)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
            assert str(num_tokens) in error["message"]
            assert "512" in error["message"]
            assert "-" not in error["message"]

    def test_one_token_fits(self, server):
        answer = server.complete([5] * 511, max_tokens=1, ignore_eos=True)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 1

    def test_no_tokens(self, server):
        answer = server.complete([5, 6], max_tokens=0)
        assert answer["choices"][0]["text"] == ""
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 0

    def test_negative_max_tokens_are_named(self, server):
        answer = server.post(PATH, prompt=[5], max_tokens=-1)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")


def test_sampling_fields_reach_the_engine(server, make_engine):
    """What the fields mean is tested with the sampler; here that none gets lost on the way."""
    ids = server.tokenizer.encode(PROMPT)
    fields = {
        "temperature": 0.9,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.01,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
        "seed": 5,
        "min_tokens": 3,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "max_tokens": 12,
    }
    text = server.complete(ids, **fields, logit_bias={"70": 3.5}, stop=["zzz"])["choices"][0]
    params = SamplingParams(**fields, logit_bias={70: 3.5}, stop=("zzz",))
    engine = make_engine()
    engine.add_request("direct", ids, params)
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    assert text["text"] == outputs[-1].outputs[0].text
