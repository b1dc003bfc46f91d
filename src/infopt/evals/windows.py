"""Fixed token windows: what perplexity and fidelity are measured on, written down exactly."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from infopt import corpus
from infopt.errors import ConfigError, MeasurementError
from infopt.evals.model import EvalModel, check_fits


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of text with its context.

    Attributes:
        token_ids: What the model reads.
        num_scored: How many of the last tokens count; the others only give context.
        source: Where the text is from ("docs", "code", ...).
    """

    token_ids: tuple[int, ...]
    num_scored: int
    source: str = "text"

    @property
    def scored_ids(self) -> tuple[int, ...]:
        """The tokens that count, shape (num_scored,)."""
        return self.token_ids[-self.num_scored :]

    @property
    def digest(self) -> str:
        """Content key: equal for equal tokens that are scored alike."""
        packed = np.array([self.num_scored, *self.token_ids], dtype=np.int64).tobytes()
        return hashlib.sha256(packed).hexdigest()


@dataclass(frozen=True, slots=True)
class WindowSet:
    """Windows and the sentence that reproduces them.

    Attributes:
        windows: The windows.
        protocol: How they were made; numbers with different protocols do not compare.
    """

    windows: tuple[Window, ...]
    protocol: str


def text_windows(
    llm: EvalModel,
    text: str,
    *,
    context: int = 512,
    stride: int | None = None,
    max_tokens: int | None = None,
    source: str = "text",
) -> WindowSet:
    """Cut a text into windows of ``context`` tokens, a ``stride`` apart.

    The last ``stride`` tokens of a window count, so each counted token has at least
    ``context - stride`` tokens before it. With ``stride == context`` a window's first token is
    context too, unless the tokenizer starts texts with a BOS token, which each window then gets in
    addition. With ``max_tokens`` the windows kept lie evenly over the whole text.

    Args:
        llm: The model; its tokenizer cuts the text.
        text: The text.
        context: Tokens per window (BOS not counted).
        stride: Tokens between window starts; default ``context``.
        max_tokens: Most tokens to score.
        source: Label of the windows.

    Raises:
        ConfigError: If ``context``, ``stride`` or ``max_tokens`` is impossible.
        MeasurementError: If the text is shorter than one window.
        PromptTooLongError: If a window is longer than the model's limit.
    """
    stride = context if stride is None else stride
    _check_sizes(context, stride, max_tokens)
    bos = bos_prefix(llm)
    check_fits(llm, context + len(bos), "context")
    ids = llm.tokenizer.encode(text, add_special_tokens=False)
    if len(ids) < context:
        raise MeasurementError(
            f"The {source} text has {len(ids)} tokens, fewer than one window of {context}.",
            field="context",
            value=context,
            remedy="Give more text or a smaller context.",
        )
    num_scored = min(stride, context - 1 + len(bos))
    starts = _spread(range(0, len(ids) - context + 1, stride), max_tokens, stride)
    windows = tuple(
        Window((*bos, *ids[start : start + context]), num_scored, source) for start in starts
    )
    limit = "all" if max_tokens is None else max_tokens
    protocol = f"{source}/ctx={context}/stride={stride}/bos={len(bos)}/max={limit}"
    return WindowSet(windows, f"{protocol}/windows={len(windows)}")


def corpus_windows(
    llm: EvalModel,
    kind: corpus.Kind,
    *,
    context: int = 512,
    stride: int | None = None,
    max_tokens: int | None = None,
) -> WindowSet:
    """Return windows of the held-out corpus; the protocol names Python version and content."""
    text = corpus.text(kind, "heldout")
    made = text_windows(
        llm, text, context=context, stride=stride, max_tokens=max_tokens, source=kind
    )
    version = platform.python_version()
    content = corpus.content_hash(kind, "heldout")
    return WindowSet(made.windows, f"{made.protocol}/python={version}/sha256={content}")


def bos_prefix(llm: EvalModel) -> tuple[int, ...]:
    """Return the BOS token as a tuple if the tokenizer starts texts with it, else nothing."""
    bos = llm.tokenizer.bos_token_id
    encoded = llm.tokenizer.encode("a", add_special_tokens=True)
    plain = llm.tokenizer.encode("a", add_special_tokens=False)
    return (bos,) if bos is not None and encoded[:1] == [bos] and plain[:1] != [bos] else ()


def scored_logits(llm: EvalModel, window: Window) -> torch.Tensor:
    """Return the logits that predict a window's scored tokens, shape (num_scored, vocab_size)."""
    # Row i predicts token i + 1; the last row predicts a token that the window does not hold.
    return llm.logits(list(window.token_ids))[-window.num_scored - 1 : -1]


def windows_digest(windows: Sequence[Window]) -> str:
    """Return the content key of several windows, order included."""
    return hashlib.sha256("".join(window.digest for window in windows).encode()).hexdigest()


def check_windows(llm: EvalModel, windows: Sequence[Window]) -> None:
    """Refuse windows that cannot be measured.

    Raises:
        MeasurementError: If there are none, or one has nothing to score.
        PromptTooLongError: If one is longer than the model's limit.
    """
    if not windows:
        raise MeasurementError(
            "No windows to measure.",
            field="windows",
            value=0,
            remedy="Make them with text_windows() or corpus_windows().",
        )
    for window in windows:
        if not 1 <= window.num_scored < len(window.token_ids):
            raise MeasurementError(
                f"A window of {len(window.token_ids)} tokens cannot score {window.num_scored}: the "
                "first token has nothing before it.",
                field="num_scored",
                value=window.num_scored,
                remedy="Score between 1 token and all but the first.",
            )
    check_fits(llm, max(len(window.token_ids) for window in windows), "windows")


def _spread(starts: range, max_tokens: int | None, stride: int) -> list[int]:
    """Keep as many starts as the budget allows, evenly spaced from the first to the last."""
    wanted = len(starts) if max_tokens is None else min(len(starts), max_tokens // stride)
    picks = np.linspace(0, len(starts) - 1, wanted).round().astype(int)
    return [starts[int(i)] for i in picks]


def _check_sizes(context: int, stride: int, max_tokens: int | None) -> None:
    if context < 2:
        raise ConfigError(
            f"context must be at least 2, got {context}.", field="context", value=context
        )
    if not 1 <= stride <= context:
        raise ConfigError(
            f"stride must be from 1 to context={context}, got {stride}.",
            field="stride",
            value=stride,
        )
    if max_tokens is not None and max_tokens < stride:
        raise ConfigError(
            f"max_tokens={max_tokens} is below one window's stride of {stride}.",
            field="max_tokens",
            value=max_tokens,
            remedy=f"Raise it to at least {stride}, or leave it out to take the whole text.",
        )
