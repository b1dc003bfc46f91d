"""What grammars allow, byte by byte, and which descriptions are refused."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from infopt.structured import GrammarCompiler, StructuredOutputError, StructuredSpec

EOS, COMMA = 256, 257


class Bytes:
    """A vocabulary of single bytes, end-of-sequence, one longer token and a special one."""

    vocab_size = 259
    bos_token_id = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        named = {EOS: b"<eos>", COMMA: b", ", 258: b"<tag>"}
        return named[token_id] if token_id in named else bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return token_id in (EOS, 258)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(Bytes(), [EOS])


@pytest.fixture
def accepts(compiler: GrammarCompiler) -> Any:
    """Whether a text (or list of tokens) is a whole output; a prefix of one is not enough."""

    def check(spec: StructuredSpec, output: str | bytes | list[int]) -> bool:
        constraint = compiler.compile(spec)()
        tokens = output.encode() if isinstance(output, str) else output
        for token in tokens:
            if not constraint.allowed()[token]:
                return False
            assert constraint.accept(token)
        return bool(constraint.allowed()[EOS])

    return check


def closed(**properties: Any) -> StructuredSpec:
    """An object with exactly these properties."""
    return StructuredSpec.json_schema(
        {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    )


@pytest.mark.parametrize(
    ("text", "is_string"),
    [
        (b"\t", False),
        (b"\\x41", False),
        (b"\xed\xa0\x80", False),
        (b"\xc0\x80", False),
        (b"\\ud800", False),
        (b"\\t", True),
        (b"\\u00e9", True),
        ("é".encode(), True),
    ],
)
def test_strings(accepts, text, is_string):
    """Raw control characters, unknown escapes and broken UTF-8 were let through."""
    assert accepts(closed(t={"type": "string"}), b'{"t":"' + text + b'"}') is is_string


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"enum": []}, ["anyOf is empty"]),
        ({"type": "integer", "minimum": 5, "maximum": 3}, ["minimum (5)", "maximum (3)"]),
        ({"required": ["x"], "additionalProperties": False, "type": "object"}, ["'x'"]),
        (
            {"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]},
            ["properties.a", "empty"],
        ),
        ({"properties": {"n": {"$ref": "#/$defs/absent"}}}, ["properties.n", "absent"]),
        ({"$ref": "http://localhost:1/schema.json"}, ["http://localhost:1"]),
        ({"type": "string", "format": "nonsense"}, ["nonsense"]),
        ({"items": {"type": "string", "pattern": "(?=a)b"}}, ["items", "look-ahead"]),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, ["oneOf"]),
        (False, ["false"]),
        ([], ["top", "object"]),
    ],
)
def test_impossible_schemas_are_refused(compiler, schema, words):
    """A schema that nothing satisfies compiled, and the output stopped in the middle."""
    with pytest.raises(StructuredOutputError) as caught:
        compiler.compile(StructuredSpec.json_schema(schema))
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    "keyword",
    [
        *("additionalItems", "uniqueItems", "not", "dependentSchemas", "contains", "if"),
        *("unevaluatedProperties", "propertyNames", "dependentRequired", "minContains"),
    ],
)
def test_keywords_that_are_not_enforced_are_named(compiler, keyword):
    """Some were not read at all; the default happened to look right."""
    schema = {"type": "object", "properties": {"o": {"anyOf": [{}, {keyword: {}}]}}}
    with pytest.raises(StructuredOutputError) as caught:
        compiler.compile(StructuredSpec.json_schema(schema))
    assert caught.value.field == f"properties.o.anyOf.1.{keyword}"
    assert repr(keyword) in str(caught.value)


def test_misspelt_keywords_get_a_hint(compiler):
    with pytest.raises(StructuredOutputError, match="Did you mean 'maxLength'"):
        compiler.compile(StructuredSpec.json_schema({"type": "string", "maxLenght": 2}))


def test_annotations_are_no_constraints(accepts):
    schema = {"title": "T", "description": "d", "default": 1, "examples": [1], "type": "integer"}
    assert accepts(StructuredSpec.json_schema(schema), "12")


def test_pattern_properties_are_enforced(accepts):
    spec = StructuredSpec.json_schema(
        {
            "type": "object",
            "patternProperties": {"^n": {"type": "integer"}},
            "additionalProperties": False,
        }
    )
    assert accepts(spec, '{"n1":5}')
    assert not accepts(spec, '{"n1":"x"}')
    assert not accepts(spec, '{"m":5}')


class TestLimits:
    def test_empty_object(self, accepts):
        assert accepts(closed(), "{}")
        assert not accepts(closed(), '{"a":1}')

    def test_long_strings(self, accepts):
        """A large maxLength broke the grammar, and the message named nothing."""
        spec = StructuredSpec.json_schema({"type": "string", "maxLength": 5000})
        assert accepts(spec, json.dumps("x" * 5000))
        assert not accepts(spec, json.dumps("x" * 5001))

    def test_long_strings_deep_inside(self, accepts):
        inner = {"type": "object", "properties": {"s": {"type": "string", "maxLength": 65536}}}
        assert accepts(closed(o=inner), json.dumps({"o": {"s": "x" * 200}}))


NODE = {
    "$defs": {
        "n": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/n",
}


class TestReferences:
    def test_recursion(self, accepts):
        spec = StructuredSpec.json_schema(NODE)
        assert accepts(spec, '{"v":1,"next":{"v":2,"next":{"v":3,"next":null}}}')
        assert not accepts(spec, '{"v":1,"next":{"v":2,"next":{"v":"3","next":null}}}')

    def test_into_a_list_by_index(self, accepts):
        """A reference into anyOf by index was not resolved."""
        spec = StructuredSpec.json_schema(
            {
                "type": "object",
                "properties": {
                    "t": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
                    "u": {"$ref": "#/properties/t/anyOf/1"},
                },
                "required": ["t", "u"],
                "additionalProperties": False,
            }
        )
        assert accepts(spec, '{"t":null,"u":5}')
        assert not accepts(spec, '{"t":null,"u":null}')


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_nothing_is_fetched(compiler, keyword):
    """A schema in a request must not make the server call others."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
        with pytest.raises(StructuredOutputError):
            compiler.compile(StructuredSpec.json_schema({"properties": {"a": {keyword: address}}}))
        with pytest.raises(TimeoutError):
            listener.accept()


def test_values_that_are_not_ascii(accepts):
    """They could be had as escapes only, or were read as Latin-1."""
    spec = StructuredSpec.json_schema({"enum": ["Ärger", "離線", "🫠"]})
    assert all(accepts(spec, f'"{text}"') for text in ("Ärger", "離線", "🫠"))
    assert not accepts(spec, '"Arger"')


@pytest.mark.parametrize("constant", ['one\ntwo "q" \\ end', "\t" + " " * 20])
def test_constants_are_whole(accepts, constant):
    """A constant was cut short after its newline and still accepted."""
    spec, text = StructuredSpec.json_schema({"const": constant}), json.dumps(constant)
    assert accepts(spec, text)
    assert not any(accepts(spec, text[:size] + '"') for size in range(1, len(text) - 1))


@pytest.mark.parametrize("between", [",", ", ", ",\n  "])
def test_separators_are_free(accepts, between):
    """Without white space a model that is used to ", " ended its lists after one item."""
    spec = StructuredSpec.json_schema({"type": "array", "items": {"type": "integer"}})
    assert accepts(spec, f"[1{between}2{between}3]")


def test_separators_in_one_token(accepts):
    spec = StructuredSpec.json_schema({"type": "array", "items": {"type": "integer"}})
    assert accepts(spec, [ord("["), ord("1"), COMMA, ord("2"), ord("]")])


def test_white_space_ends(accepts):
    """A model that likes white space must not go on with it for ever."""
    assert not accepts(StructuredSpec.json_object(), "{" + " " * 17 + "}")


class TestOtherForms:
    def test_regex_matches_the_whole(self, accepts):
        spec = StructuredSpec.regex("[a-c]{2,3}")
        assert [accepts(spec, text) for text in ("a", "ab", "abc", "abcd", "ad")] == [
            *(False, True, True, False, False)
        ]

    def test_choice(self, accepts):
        spec = StructuredSpec.choice(["a\nb", 'say "x"', "é"])
        assert all(accepts(spec, text) for text in ("a\nb", 'say "x"', "é"))
        assert not accepts(spec, "a")

    def test_grammar(self, accepts):
        spec = StructuredSpec.grammar('start: "(" start ")" | "x"')
        assert accepts(spec, "((x))")
        assert not accepts(spec, "((x)")

    @pytest.mark.parametrize(
        "spec",
        [
            StructuredSpec.regex("("),
            StructuredSpec.regex("(?=a)b"),
            StructuredSpec.grammar("start: absent"),
            StructuredSpec.grammar("nonsense"),
        ],
    )
    def test_malformed_ones_are_refused(self, compiler, spec):
        with pytest.raises(StructuredOutputError) as caught:
            compiler.compile(spec)
        assert caught.value.field == spec.kind

    @pytest.mark.parametrize(
        "make",
        [
            StructuredSpec.regex,
            lambda half: StructuredSpec.choice(["a", half]),
            lambda half: StructuredSpec.grammar(f'start: "{half}"'),
            lambda half: StructuredSpec.json_schema({"enum": [half]}),
            lambda half: StructuredSpec.json_schema({"properties": {half: {}}}),
        ],
    )
    def test_half_a_surrogate_pair_is_refused(self, make):
        """Pins: it ended in an encoding error of the library's own."""
        with pytest.raises(StructuredOutputError, match="half of a surrogate pair"):
            make("\ud83d")

    def test_no_choice(self):
        with pytest.raises(StructuredOutputError):
            StructuredSpec.choice([])


class TestConstraint:
    def test_end_is_allowed_only_when_complete(self, compiler):
        constraint = compiler.compile(StructuredSpec.regex("ab?"))()
        assert not constraint.allowed()[EOS]
        constraint.accept(ord("a"))
        assert constraint.allowed()[EOS]
        assert not constraint.is_terminated
        constraint.accept(ord("b"))
        assert constraint.is_terminated

    def test_completions_are_independent(self, compiler):
        make = compiler.compile(StructuredSpec.regex("ab"))
        first, second = make(), make()
        first.accept(ord("a"))
        assert second.allowed()[ord("a")]

    def test_rollback(self, compiler):
        constraint = compiler.compile(StructuredSpec.regex("abc"))()
        for token in b"ab":
            constraint.accept(token)
        constraint.rollback(2)
        assert constraint.allowed().nonzero().flatten().tolist() == [ord("a")]

    def test_forbidden_token_is_reported_and_does_not_raise(self, compiler):
        constraint = compiler.compile(StructuredSpec.regex("abc"))()
        assert not constraint.accept(ord("x"))
        assert constraint.allowed().any()
        assert not constraint.accept(ord("a"))
