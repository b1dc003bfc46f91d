"""Compiles descriptions of output into constraints, by llguidance."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from infopt.structured.constraint import GrammarConstraint
from infopt.structured.schema_check import check_keywords, children
from infopt.structured.spec import StructuredOutputError, StructuredSpec

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

WHITESPACE = r"[ \t\n\r]{0,16}"
"""Between the parts of JSON: free, so that a model can write as it is used to, but not for ever."""

_MAX_CACHED = 64


class Vocabulary(Protocol):
    """The part of a tokenizer that is needed here."""

    vocab_size: int

    @property
    def bos_token_id(self) -> int | None:
        """Id of the beginning-of-sequence token."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes of a token."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether a token is a special one."""
        ...


class GrammarCompiler:
    """Makes constraints for the tokens of one model; equal descriptions are compiled once.

    Args:
        tokenizer: The model's.
        eos_token_ids: Tokens that may end the output once it is complete.
    """

    def __init__(self, tokenizer: Vocabulary, eos_token_ids: Sequence[int]) -> None:
        """Put off all work until something is to be compiled."""
        self._tokenizer, self._eos_token_ids = tokenizer, list(eos_token_ids)
        self._matcher = lru_cache(_MAX_CACHED)(self._compile)
        self._vocabulary: LLTokenizer | None = None

    @property
    def num_compiled(self) -> int:
        """Descriptions whose compiled form is kept, at most 64."""
        return self._matcher.cache_info().currsize

    def compile(self, spec: StructuredSpec) -> Callable[[], GrammarConstraint]:
        """Return what makes a fresh constraint for each completion.

        Raises:
            StructuredOutputError: If the description is malformed, impossible or not supported; of
                a schema the path is named.
        """
        matcher, num_tokens = self._matcher(spec), self._tokenizer.vocab_size
        return lambda: GrammarConstraint(matcher.deep_copy(), num_tokens)

    def _compile(self, spec: StructuredSpec) -> LLMatcher:
        from llguidance import LLMatcher

        grammar = _grammar_of(spec)
        if self._vocabulary is None:
            self._vocabulary = _vocabulary_of(self._tokenizer, self._eos_token_ids)
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0)
        if matcher.is_error():  # too large for the limits, say
            raise StructuredOutputError(
                f"the {spec.kind} cannot be used: {_reason(matcher.get_error())}", field=spec.kind
            )
        return matcher


def _grammar_of(spec: StructuredSpec) -> str:
    """Return the grammar in llguidance's own form, after checking it.

    Raises:
        StructuredOutputError: See `GrammarCompiler.compile`.
    """
    from llguidance import LLMatcher

    if spec.kind == "json_schema":
        schema = json.loads(spec.source)
        check_keywords(schema)
        grammar = _schema_grammar(schema)
    elif spec.kind == "regex":
        grammar = LLMatcher.grammar_from_regex(spec.source)
    else:
        grammar = LLMatcher.grammar_from_lark(spec.source)
    reason = _complaint(grammar)
    if reason is None:
        return grammar
    path = ""
    if spec.kind == "json_schema":
        path, reason = _innermost_complaint(json.loads(spec.source), reason)
    where = f" at {path}" if path else ""
    raise StructuredOutputError(
        f"the {spec.kind}{where} cannot be used: {reason}", field=path or spec.kind
    )


def _schema_grammar(schema: Any) -> str:
    from llguidance import LLMatcher

    # `lenient` off: what cannot be enforced must fail.
    options: Any = {
        "whitespace_pattern": WHITESPACE,
        "lenient": False,
        "coerce_one_of": False,
        "json_allow_general_unicode_escapes": True,
    }
    schema = schema if isinstance(schema, dict) else {"anyOf": [schema]}
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)


def _complaint(grammar: str) -> str | None:
    """Return why a grammar cannot be used (warnings count), or None if it can."""
    from llguidance import LLMatcher

    _, texts = LLMatcher.validate_grammar_with_warnings(grammar)
    return _reason(texts[0]) if texts else None


def _innermost_complaint(
    schema: Any, reason: str, path: str = "", root: Any = None
) -> tuple[str, str]:
    """Return place and fault of the innermost schema that cannot be used by itself."""
    root = schema if root is None else root
    for place, inner in children(schema) if isinstance(schema, dict) else ():
        if isinstance(inner, bool):
            continue  # false is how additional properties are forbidden
        found = _complaint(_schema_grammar(_with_definitions(inner, root)))
        if found is not None:
            return _innermost_complaint(inner, found, f"{path}.{place}" if path else place, root)
    return path, reason


def _with_definitions(schema: Any, root: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    named = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return named | schema


def _reason(text: str) -> str:
    """Return the first line of a message, with what follows only if it explains the first."""
    lines = [line.strip() for line in text.strip().splitlines()]
    explained = next((line for line in lines if line.startswith("error:")), "")
    return f"{lines[0]} {explained}".strip() if lines else "no reason is known"


def _vocabulary_of(tokenizer: Vocabulary, eos_token_ids: list[int]) -> LLTokenizer:
    """Tell llguidance the exact bytes of every token."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(
        TokenizerWrapper(_TokenTable(tokenizer, eos_token_ids[0])),
        n_vocab=tokenizer.vocab_size,
        eos_token=eos_token_ids,
    )


class _TokenTable:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Vocabulary, eos_token_id: int) -> None:
        ids = range(tokenizer.vocab_size)
        self.eos_token_id, self.bos_token_id = eos_token_id, tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in ids]
        self.special_token_ids = [i for i in ids if tokenizer.is_special(i)]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)
