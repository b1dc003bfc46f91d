"""Log-probabilities in the two shapes of the API."""

from __future__ import annotations

import codecs
from typing import Any

from infopt.models.tokenizer import Tokenizer
from infopt.outputs import Logprob, PositionLogprobs


def token_text(raw: bytes) -> str:
    r"""Return a token as text; part of a character becomes ``bytes:\xe2\x80``.

    So two tokens that are different parts of a character stay two different keys.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class CompletionLogprobs:
    """The parallel lists of ``/v1/completions``, for one answer that comes in pieces.

    Args:
        tokenizer: For the bytes of tokens.
        skip_special_tokens: Whether the answer's text leaves special tokens out.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        """Begin at offset 0."""
        self._tokenizer, self._skips_special = tokenizer, skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def write_prompt(
        self, text: str, token_ids: list[int], entries: list[PositionLogprobs | None]
    ) -> dict[str, Any]:
        """Return the lists for an echoed prompt.

        Tokens that are not in the text (a BOS that the tokenizer added) are at offset 0.
        """
        joined = b"".join(self._tokenizer.token_bytes(token) for token in token_ids)
        self._offset = len(text) - len(joined.decode("utf-8", errors="replace"))
        return self._write(token_ids, entries, skips_special=False)

    def write(self, token_ids: list[int], entries: list[PositionLogprobs]) -> dict[str, Any]:
        """Return the lists for new tokens."""
        return self._write(token_ids, list(entries), skips_special=self._skips_special)

    def _write(
        self, token_ids: list[int], entries: list[PositionLogprobs | None], skips_special: bool
    ) -> dict[str, Any]:
        raws = [self._tokenizer.token_bytes(token) for token in token_ids]
        offsets = []
        for token, raw in zip(token_ids, raws, strict=True):
            offsets.append(max(self._offset, 0))
            if not (skips_special and self._tokenizer.is_special(token)):
                self._offset += len(self._decoder.decode(raw))
        pairs = list(zip(token_ids, entries, strict=True))
        return {
            "tokens": [token_text(raw) for raw in raws],
            "token_logprobs": [e[t].logprob if e is not None else None for t, e in pairs],
            "top_logprobs": [_top(e) if e is not None else None for _, e in pairs],
            "text_offset": offsets,
        }


def join_logprobs(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the lists of an echoed prompt and of its answer together."""
    return {key: [item for part in parts for item in part[key]] for key in parts[0]}


def _top(entry: PositionLogprobs) -> dict[str, float]:
    """Return text -> log-probability, the most likely first; of equal texts the better value."""
    top: dict[str, float] = {}
    for candidate in _ranked(entry):
        top.setdefault(token_text(_bytes(candidate)), candidate.logprob)
    return top


def chat_logprobs(
    token_ids: list[int], entries: list[PositionLogprobs], num_top: int
) -> dict[str, Any]:
    """Return the ``logprobs`` object of a chat answer."""
    content = [
        _described(entry[token])
        | {"top_logprobs": [_described(c) for c in _ranked(entry) if c.rank <= num_top]}
        for token, entry in zip(token_ids, entries, strict=True)
    ]
    return {"content": content, "refusal": None}


def _described(candidate: Logprob) -> dict[str, Any]:
    raw = _bytes(candidate)
    text = raw.decode("utf-8", errors="replace")
    return {"token": text, "logprob": candidate.logprob, "bytes": list(raw)}


def _ranked(entry: PositionLogprobs) -> list[Logprob]:
    return sorted(entry.values(), key=lambda candidate: candidate.rank)


def _bytes(candidate: Logprob) -> bytes:
    assert candidate.token_bytes is not None, "the server always asks for text"
    return candidate.token_bytes
