"""Structured output: JSON, JSON Schema, regular expressions and grammars, enforced per token."""

from infopt.structured.compiler import GrammarCompiler
from infopt.structured.response_format import with_response_format
from infopt.structured.spec import StructuredOutputError, StructuredSpec

__all__ = [
    "GrammarCompiler",
    "StructuredOutputError",
    "StructuredSpec",
    "with_response_format",
]
