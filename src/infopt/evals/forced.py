"""Logits behind a long prompt, token by token: what decoding computes when the text is given.

Scoring a text in one piece computes its tokens like those of a prompt. A cache that changes once
the prompt has ended (rows evicted, pages quantized) is seen only by decoding. So the last tokens of
a window are generated here, each forced to be the one of the text, and the raw logits that it was
chosen from are kept. All windows are decoded together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from infopt.engine.engine import Engine
from infopt.engine.sequence import Sequence as EngineSequence
from infopt.errors import MeasurementError
from infopt.evals.fidelity import TokenFidelity, compare_logits
from infopt.evals.model import check_fits
from infopt.evals.windows import Window, check_windows
from infopt.llm import LLM
from infopt.sampling_params import SamplingParams

_request_ids = itertools.count()


class ForcedText:
    """A constraint under which only the next token of a given text may come.

    Args:
        token_ids: The text.
        num_token_ids: Ids that exist.
    """

    def __init__(self, token_ids: Sequence[int], num_token_ids: int) -> None:
        """Begin at the first token."""
        self._token_ids, self._num_token_ids, self._at = token_ids, num_token_ids, 0

    @property
    def is_terminated(self) -> bool:
        """Whether the text is complete."""
        return self._at >= len(self._token_ids)

    def allowed(self) -> torch.Tensor:
        """Return a mask that holds the next token alone, bool ``(num_token_ids,)``."""
        mask = torch.zeros(self._num_token_ids, dtype=torch.bool)
        if not self.is_terminated:
            mask[self._token_ids[self._at]] = True
        return mask

    def accept(self, token_id: int) -> bool:
        """Take the next token; False if it is another one."""
        if self.is_terminated or token_id != self._token_ids[self._at]:
            return False
        self._at += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        """Take back the newest tokens."""
        self._at -= num_tokens


def forced_logits(llm: LLM, windows: Sequence[Window]) -> list[torch.Tensor]:
    """Return the logits that predict each window's scored tokens, every one of them decoded.

    The prompt ends one token before the first scored one: that token's logits come from the end of
    the prompt, where nothing has been evicted yet, so it does not count.

    Args:
        llm: The model; other requests are not disturbed.
        windows: What to decode.

    Returns:
        Per window float32 ``(num_scored, vocab_size)``, on the host.

    Raises:
        MeasurementError: A window leaves no prompt, or a request ended before its text did.
        PromptTooLongError: A window is longer than the model's limit.
    """
    check_windows(llm, windows)
    check_fits(llm, max(len(window.token_ids) for window in windows), "windows")
    short = [w for w in windows if w.num_scored + 2 > len(w.token_ids)]
    if short:
        raise MeasurementError(
            f"A window of {len(short[0].token_ids)} tokens of which {short[0].num_scored} count "
            "leaves no prompt to decode behind.",
            field="num_scored",
            value=short[0].num_scored,
            remedy="Score fewer tokens of each window.",
        )
    engine = llm.engine
    ids = [f"forced-{next(_request_ids)}" for _ in windows]
    with _observed(engine, ids) as rows:
        for request_id, window in zip(ids, windows, strict=True):
            _add(engine, request_id, window)
        _run(engine, set(ids))
    return [
        _kept(rows[request_id], window) for request_id, window in zip(ids, windows, strict=True)
    ]


def compare_forced(
    reference: Sequence[torch.Tensor], llm: LLM, windows: Sequence[Window]
) -> list[TokenFidelity]:
    """Compare a candidate's decoding with a reference's logits from `forced_logits`.

    Args:
        reference: One entry per window.
        llm: The candidate.
        windows: The same windows.
    """
    logits = forced_logits(llm, windows)
    return [
        compare_logits(expected, actual, window.scored_ids)
        for expected, actual, window in zip(reference, logits, windows, strict=True)
    ]


def _add(engine: Engine, request_id: str, window: Window) -> None:
    cut = len(window.token_ids) - window.num_scored - 1
    prompt, text = list(window.token_ids[:cut]), window.token_ids[cut:]
    num_ids = engine.checker.num_token_ids
    params = SamplingParams(
        temperature=0, max_tokens=len(text), ignore_eos=True, detokenize=False, seed=0
    )
    engine.add_request(request_id, prompt, params, constraint=lambda: ForcedText(text, num_ids))


@contextmanager
def _observed(engine: Engine, ids: Sequence[str]) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Collect the rows that tokens of these requests are chosen from; end them in any case."""
    rows: dict[str, list[torch.Tensor]] = {request_id: [] for request_id in ids}

    def observe(sequence: EngineSequence, row: torch.Tensor) -> None:
        if sequence.request_id in rows:
            rows[sequence.request_id].append(row.float().cpu().clone())

    saved, engine.logit_observer = engine.logit_observer, observe
    try:
        yield rows
    finally:
        engine.logit_observer = saved
        for request_id in ids:
            engine.discard(request_id)


def _run(engine: Engine, pending: set[str]) -> None:
    while pending:
        for output in engine.step():
            if output.finished:
                pending.discard(output.request_id)


def _kept(rows: list[torch.Tensor], window: Window) -> torch.Tensor:
    """Return the rows of the scored tokens; the first row is the prompt's end."""
    if len(rows) != window.num_scored + 1:
        raise MeasurementError(
            f"A text of {window.num_scored + 1} tokens was forced, {len(rows)} were decoded.",
            field="windows",
            value=len(rows),
            remedy="Give the engine a larger pool (kv_cache_memory_gib).",
        )
    return torch.stack(rows[1:])
