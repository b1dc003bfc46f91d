"""Function calling and reasoning over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

PATH = "/v1/chat/completions"
EOS = 1
HI = [{"role": "user", "content": "hi"}]
HERMES = (
    "{% for t in tools or [] %}{{ t.function.name }} <tool_call> {% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments.items() | list }}{% endfor %}\n"
    "{% endfor %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"town": {"$ref": "#/$defs/town"}, "days": {"enum": [1, 2]}},
            "required": ["town", "days"],
            "additionalProperties": False,
            "$defs": {"town": {"enum": ["Ulm", "Köln"]}},
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


@pytest.fixture
def hermes(server, monkeypatch):
    monkeypatch.setattr(server.tokenizer.hf, "chat_template", HERMES)
    return server


@pytest.fixture
def say(hermes, script):
    """Make the model say a text, byte by byte, and end."""

    def install(text: str, *, ends: bool = True) -> int:
        table = {hermes.tokenizer.token_bytes(i): i for i in range(hermes.tokenizer.vocab_size)}
        ids = [table[bytes([byte])] for byte in text.encode()]
        script([*ids, EOS] if ends else ids)
        return len(ids)

    return install


def both(server: Any, **options: Any) -> list[dict[str, Any]]:
    """Return the choice of a whole answer, and one joined from a stream."""
    whole = server.chat(**options)["choices"][0]
    joined: dict[str, Any] = {"content": "", "tool_calls": {}}
    reason = None
    for event in server.stream(PATH, **({"messages": HI} | options)):
        (choice,) = event["choices"]
        joined["content"] += choice["delta"].get("content", "")
        for piece in choice["delta"].get("tool_calls", []):
            call = joined["tool_calls"].setdefault(piece["index"], {"arguments": "", "id": ""})
            call["id"] += piece.get("id", "")
            call["name"] = piece["function"].get("name", call.get("name"))
            call["arguments"] += piece["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    calls = [
        {"id": c["id"], "function": {"name": c["name"], "arguments": c["arguments"]}}
        for c in joined["tool_calls"].values()
    ]
    streamed = {"message": {"content": joined["content"] or None, "tool_calls": calls}}
    return [whole, streamed | {"finish_reason": reason}]


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    calls = choice["message"].get("tool_calls") or []
    assert len({c["id"] for c in calls}) == len(calls)
    return [(c["function"]["name"], c["function"]["arguments"]) for c in calls]


class TestAuto:
    def test_two_calls(self, hermes, say):
        say(
            '<tool_call>{"name": "weather", "arguments": {"town": "Köln"}}</tool_call>\n'
            '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
        )
        options = {"tools": [WEATHER, CLOCK], "max_tokens": 300}
        for choice in both(hermes, **options):
            assert calls_of(choice) == [("weather", '{"town": "Köln"}'), ("clock", "{}")]
            assert choice["finish_reason"] == "tool_calls"
            assert choice["message"]["content"] is None
        for choice in both(hermes, **options, parallel_tool_calls=False):
            assert [name for name, _ in calls_of(choice)] == ["weather"]

    def test_text_only(self, hermes, say):
        say("It is warm.")
        for choice in both(hermes, tools=[WEATHER], max_tokens=50):
            assert choice["message"]["content"] == "It is warm."
            assert choice["finish_reason"] == "stop"
            assert calls_of(choice) == []

    def test_stop_string_does_not_swallow_text(self, hermes, say):
        """What the parser held back was thrown away when a stop string ended the stream."""
        say("see <toolSTOP", ends=False)
        for choice in both(hermes, tools=[WEATHER], stop=["STOP"], max_tokens=50):
            assert choice["message"]["content"] == "see <tool"
            assert choice["finish_reason"] == "stop"

    def test_cut_call_says_length(self, hermes, say):
        """A call cut by the limit was reported as complete."""
        size = say('<tool_call>{"name": "weather", "arguments": {"town": "Ul', ends=False)
        for choice in both(hermes, tools=[WEATHER], max_tokens=size):
            assert choice["finish_reason"] == "length"
            assert calls_of(choice) == [("weather", '{"town": "Ul')]

    def test_none_means_none(self, hermes, say):
        text = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
        say(text)
        for choice in both(hermes, tools=[WEATHER], tool_choice="none", max_tokens=100):
            assert choice["message"]["content"] == text
            assert choice["finish_reason"] == "stop"
            assert calls_of(choice) == []
        body = {"messages": HI, "tools": [WEATHER]}
        shown = hermes.post("/tokenize", **body).json()["count"]
        hidden = hermes.chat(tools=[WEATHER], tool_choice="none", max_tokens=1)["usage"]
        assert hidden["prompt_tokens"] < shown


class TestForced:
    """The model is random: only the constraint can make it call."""

    def test_required(self, hermes):
        for seed in range(3):
            options = {"tools": [WEATHER, CLOCK], "tool_choice": "required", "seed": seed}
            options |= {"parallel_tool_calls": False, "max_tokens": 400}
            for choice in both(hermes, **options):
                if choice["finish_reason"] == "length":
                    continue  # a random model fills the open arguments of `clock` for ever
                ((name, arguments),) = calls_of(choice)
                assert choice["finish_reason"] == "tool_calls"
                value = json.loads(arguments)
                assert name == "clock" or value["town"] in ("Ulm", "Köln")

    def test_required_of_one(self, hermes):
        options = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
        choices = both(hermes, **options, seed=1, max_tokens=300)
        assert calls_of(choices[0]) == calls_of(choices[1])
        ((name, arguments),) = calls_of(choices[0])
        assert name == "weather"
        assert set(json.loads(arguments)) == {"town", "days"}
        assert [c["finish_reason"] for c in choices] == ["tool_calls"] * 2

    def test_named(self, hermes):
        choice_of = {"type": "function", "function": {"name": "weather"}}
        options = {"tools": [CLOCK, WEATHER], "tool_choice": choice_of, "max_tokens": 200}
        for choice in both(hermes, **options, seed=3):
            ((name, arguments),) = calls_of(choice)
            assert name == "weather"
            assert json.loads(arguments)["days"] in (1, 2)
            assert choice["finish_reason"] == "stop"
            assert choice["message"]["content"] is None


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"tool_choice": "required"}, "tool_choice"),
            (
                {
                    "tools": [CLOCK],
                    "tool_choice": {"type": "function", "function": {"name": "weather"}},
                },
                "tool_choice",
            ),
            ({"tools": [CLOCK], "response_format": {"type": "json_object"}}, "response_format"),
            ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0"),
            ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ],
    )
    def test_contradictions(self, server, fields, param):
        answer = server.post(PATH, messages=HI, **fields)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(param)

    def test_schema_of_a_forced_tool(self, server):
        tool = {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object", "not": {}}},
        }
        answer = server.post(PATH, messages=HI, tools=[tool], tool_choice="required")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "$defs.f.not"

    def test_empty_list_is_no_tools(self, server):
        options = {"max_tokens": 4, "temperature": 0}
        expected = server.chat(**options)["choices"]
        assert server.chat(**options, tools=[], tool_choice=None)["choices"] == expected


class TestHistory:
    def conversation(self, arguments: str) -> list[dict[str, Any]]:
        call = {"id": "c1", "type": "function"}
        call["function"] = {"name": "read", "arguments": arguments}
        return [
            *HI,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
            {"role": "user", "content": "go on"},
        ]

    def test_cut_arguments_are_named(self, hermes):
        """One cut call in the history made each later turn fail with 500."""
        answer = hermes.post(PATH, messages=self.conversation('{"path": "a'))
        assert answer.status_code == 400
        param = answer.json()["error"]["param"]
        assert param == "messages[1].tool_calls[0].function.arguments"
        hermes.chat(messages=self.conversation('{"path": "a"}'), max_tokens=1)

    def test_templates_see_data(self, hermes):
        body = {"messages": self.conversation('{"path": "a"}')}
        tokens = hermes.post("/tokenize", **body).json()["tokens"]
        text = hermes.post("/detokenize", tokens=tokens).json()["prompt"]
        assert "[('path', 'a')]" in text


class TestReasoning:
    @pytest.fixture
    def thinker(self, hermes, monkeypatch):
        template = (
            "{% for m in messages %}{{ m.content }}{% endfor %}{# <think> #}"
            "{% if open %}<think>\n{% endif %}"
        )
        monkeypatch.setattr(hermes.tokenizer.hf, "chat_template", template)
        return hermes

    def test_split(self, thinker, say):
        say("<think>\nWhat?</think>\n\nRed.")
        choice = thinker.chat(max_tokens=60)["choices"][0]
        assert choice["message"]["reasoning_content"] == "What?"
        assert choice["message"]["content"] == "Red."
        events = thinker.stream(PATH, messages=HI, max_tokens=60)
        deltas = [c["delta"] for e in events for c in e["choices"]]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "What?"
        assert "".join(d.get("content", "") for d in deltas) == "Red."
        whole = thinker.chat(max_tokens=60, include_reasoning=False)["choices"][0]
        assert whole["message"]["content"] == "<think>\nWhat?</think>\n\nRed."

    def test_form_applies_after_the_thoughts(self, thinker, monkeypatch):
        """Forcing JSON from the first token on left no room to think."""
        from infopt.engine import rejection as module

        real, thoughts = module.sample, b"Hm.</think>"
        table = {thinker.tokenizer.token_bytes(i): i for i in range(256 + 4)}

        def sample(logits: Any, rows: list[Any], draw: Any) -> list[int]:
            return [
                table[thoughts[row.num_output_tokens :][:1]]
                if row.num_output_tokens < len(thoughts)
                else real(logits[i : i + 1], [row], draw)[0]
                for i, row in enumerate(rows)
            ]

        monkeypatch.setattr(module, "sample", sample)
        choice = thinker.chat(
            chat_template_kwargs={"open": True},
            structured_outputs={"choice": ["yes", "no"]},
            max_tokens=40,
        )["choices"][0]
        assert choice["message"]["reasoning_content"] == "Hm."
        assert choice["message"]["content"] in ("yes", "no")
        assert choice["finish_reason"] == "stop"


def test_openai_client(hermes, say):
    say('<tool_call>{"name": "weather", "arguments": {"town": "Ulm", "days": 1}}</tool_call>')
    answer = hermes.client.chat.completions.create(
        model="tiny", messages=HI, tools=[WEATHER], max_tokens=200
    )
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"town": "Ulm", "days": 1}
    history = [
        *HI,
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sun"},
    ]
    assert hermes.client.chat.completions.create(
        model="tiny", messages=history, tools=[WEATHER], max_tokens=200
    )
