"""Whose tokens a workload counts in: those of the server, of a local tokenizer, or plain words."""

from __future__ import annotations

import re
from typing import Any

import httpx

from infopt.errors import WorkloadError

_PIECE_CHARS = 100_000
_PIECE = re.compile(rf"(?s).{{1,{_PIECE_CHARS}}}(?:\s|\Z)|.{{1,{_PIECE_CHARS}}}")
_WORD = re.compile(r"\S+\s*|\s+")


class ServerTokenizer:
    """The tokenizer behind a server's ``/tokenize`` and ``/detokenize``.

    Args:
        http: Client whose base address is the server's root.
        model: Name of the model there.
    """

    chat_template: str | None = None
    """Unknown here: the server applies its own."""

    def __init__(self, http: httpx.Client, model: str) -> None:
        """Remember where to ask."""
        self._http, self._model = http, model

    @classmethod
    def find(cls, http: httpx.Client, model: str) -> ServerTokenizer | None:
        """Return it if the server has these routes and they give a text back as it was."""
        found = cls(http, model)
        try:
            ids = found.encode("a word", add_special_tokens=False)
            return found if found.decode(ids).strip() == "a word" else None
        except WorkloadError:
            return None

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text.

        A long text is cut at white space, so that no request exceeds a server's limits.

        Raises:
            WorkloadError: The server does not answer as expected.
        """
        ids: list[int] = []
        for index, piece in enumerate(_PIECE.findall(text) or [""]):
            special = add_special_tokens and index == 0
            body = {"prompt": piece, "add_special_tokens": special}
            ids += self._ask("/tokenize", body, "tokens", list)
        return ids

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids (special tokens as the server shows them).

        Raises:
            WorkloadError: The server does not answer as expected.
        """
        del skip_special_tokens  # the routes have no such option
        return self._ask("/detokenize", {"tokens": ids}, "prompt", str)

    def apply_chat_template(self, messages: list[dict[str, Any]]) -> list[int]:
        """Refuse: a workload that needs the template has to know it."""
        raise WorkloadError(
            "The chat template of the server is not known here.",
            field="tokenizer",
            value=messages,
            remedy="Name the model's tokenizer with --tokenizer.",
        )

    def _ask(self, route: str, body: dict[str, Any], key: str, kind: type) -> Any:
        try:
            response = self._http.post(route, json={"model": self._model, **body})
            answer = response.json() if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError) as error:
            raise WorkloadError(f"{route} of the server: {error}.", field="tokenizer") from error
        value = answer.get(key) if isinstance(answer, dict) else None
        if not isinstance(value, kind):
            raise WorkloadError(
                f"{route} of the server answered {response.status_code} without {key!r}.",
                field="tokenizer",
                value=response.status_code,
                remedy="Name the model's tokenizer with --tokenizer.",
            )
        return value


class WordTokenizer:
    """Counts words where no tokenizer is known; its ids mean nothing to a server."""

    chat_template: str | None = None

    def __init__(self) -> None:
        """Begin without words."""
        self._words: list[str] = []
        self._ids: dict[str, int] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return one id per word with the white space behind it."""
        del add_special_tokens
        return [self._id(word) for word in _WORD.findall(text)]

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the words."""
        del skip_special_tokens
        return "".join(self._words[i] for i in ids)

    def apply_chat_template(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the contents, one after the other: there is no template."""
        return self.encode("\n".join(m["content"] for m in messages))

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids[word]
