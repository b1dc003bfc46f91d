"""`HttpTarget`: a server, the model that is asked there, and whose tokens are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import httpx

from infopt.bench.http.tokenizer import ServerTokenizer, WordTokenizer
from infopt.bench.text import Encoder
from infopt.errors import ConfigError, InfoptError, nearest

TokenizerSource = Literal["given", "server", "words"]

_CONNECT_TIMEOUT_S = 30.0


class ServerError(InfoptError):
    """A server cannot be reached, or does not answer as an OpenAI-compatible one."""


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Where requests go. As a context manager it closes what `connect` opened.

    Attributes:
        url: Address without ``/v1``.
        model: Name of the model there.
        api_key: Sent as ``Authorization: Bearer KEY``.
        tokenizer: Makes the prompts, and counts where the server does not.
        tokenizer_source: Whether it was ``given``, is the ``server``'s, or counts ``words``.
    """

    url: str
    model: str
    api_key: str | None = None
    tokenizer: Encoder | None = None
    tokenizer_source: TokenizerSource = "words"

    def __enter__(self) -> HttpTarget:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection that a server's tokenizer holds."""
        if isinstance(self.tokenizer, ServerTokenizer):
            self.tokenizer.close()

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json", **key}

    @property
    def knows_token_ids(self) -> bool:
        """Whether its ids are the model's."""
        return self.tokenizer is not None and self.tokenizer_source != "words"


def connect(
    url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    tokenizer: Encoder | None = None,
) -> HttpTarget:
    """Ask a server what it serves.

    Args:
        url: Its address, with or without ``/v1``.
        model: Name of the model; may be left out where one is served.
        api_key: Its key, if it wants one.
        tokenizer: The model's tokenizer; without it the server's ``/tokenize`` is used, and where
            there is none, prompts are texts whose length is counted in words.

    Raises:
        ServerError: The server cannot be reached or lists no models.
        ConfigError: It serves no such model, or several and none was named.
    """
    root = root_url(url)
    bare = HttpTarget(root, model or "", api_key)
    # Past any proxy of the environment, as the load itself goes: one would be measured, too.
    http = httpx.Client(
        base_url=root, headers=bare.headers, timeout=_CONNECT_TIMEOUT_S, trust_env=False
    )
    found: Encoder | None = tokenizer
    try:
        card = _choose_model(_list_models(http, root), model)
        if tokenizer is None:
            found = ServerTokenizer.find(http, card["id"])
    finally:
        if not isinstance(found, ServerTokenizer):
            http.close()
    source: TokenizerSource = "given" if tokenizer else "server" if found else "words"
    return HttpTarget(
        url=root,
        model=card["id"],
        api_key=api_key,
        tokenizer=found or WordTokenizer(),
        tokenizer_source=source,
    )


def root_url(url: str) -> str:
    """Return the address of a server without ``/v1``.

    Raises:
        ConfigError: It is no http address.
    """
    root = url.rstrip("/").removesuffix("/v1").rstrip("/")
    if not root.startswith(("http://", "https://")) or not root.partition("://")[2]:
        raise ConfigError(
            f"url must be an http address, got {url!r}.",
            field="url",
            value=url,
            remedy="For example http://127.0.0.1:8000.",
        )
    return root


def _list_models(http: httpx.Client, root: str) -> list[dict[str, Any]]:
    try:
        response = http.get("/v1/models")
    except httpx.HTTPError as error:
        raise ServerError(
            f"{root} cannot be reached: {str(error).rstrip('.') or type(error).__name__}.",
            field="url",
            value=root,
            remedy="Is the server running? `infopt serve MODEL` starts one.",
        ) from error
    if response.status_code != 200:
        raise ServerError(
            f"{root}/v1/models answered {response.status_code}: {response.text[:200]}",
            field="api_key" if response.status_code in (401, 403) else "url",
            value=response.status_code,
            remedy="Give the key with --api-key or OPENAI_API_KEY."
            if response.status_code in (401, 403)
            else "The server must have OpenAI's routes below /v1.",
        )
    return _cards(response, root)


def _cards(response: httpx.Response, root: str) -> list[dict[str, Any]]:
    try:
        cards = response.json()["data"]
        return [card for card in cards if isinstance(card["id"], str)]
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(
            f"{root}/v1/models lists no models: {response.text[:200]}", field="url", value=root
        ) from error


def _choose_model(cards: list[dict[str, Any]], model: str | None) -> dict[str, Any]:
    names = [card["id"] for card in cards]
    if model is None and len(cards) == 1:
        return cards[0]
    if model in names:
        return cards[names.index(model)]
    what = "serves several models" if model is None else f"does not serve {model!r}"
    raise ConfigError(
        f"The server {what}.{nearest(model or '', names)}",
        field="model",
        value=model,
        remedy=f"Choose one with --model: {', '.join(names) or 'it lists none'}.",
    )
