"""Chooses tokens from logits.

Greedy rows take the most likely token, the lowest id of equals. Other rows follow a written order:
logit_bias, penalties, constraint, min_tokens mask, temperature, min_p, top_k, top_p, then one
uniform number per output position picks from the cumulative distribution in id order. The number is
a hash of the row's seed and position, so a sample depends on nothing that shares the batch, and a
request that was preempted goes on as if nothing had happened.

Every operation here works along a row, so the bits of a row do not depend on its neighbours.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from infopt.engine.sequence import Sequence
from infopt.ops.sampling import DrawParams, DrawTokens, distribution, draw_tokens
from infopt.outputs import PositionLogprobs
from infopt.sampling_params import SamplingParams

_DESCRIBED_ROWS = 16
"""Rows whose log-probabilities are computed at a time.

A long prompt has hundreds, and a server keeps the memory of its largest step: the allocator rarely
gives it back.
"""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What the sampler must know of one row.

    Attributes:
        params: Sampling parameters.
        seed: The completion's seed.
        num_output_tokens: Tokens made so far: the position of the one to choose.
        prompt_token_ids: For the repetition penalty.
        output_counts: Occurrences of each output token.
        stop_ids: Tokens masked before ``min_tokens``.
        allowed: Tokens that a constraint allows, bool ``(num_tokens,)``; None allows all.
    """

    params: SamplingParams
    seed: int
    num_output_tokens: int
    prompt_token_ids: list[int]
    output_counts: dict[int, int]
    stop_ids: tuple[int, ...]
    allowed: torch.Tensor | None = None

    @classmethod
    def of(cls, sequence: Sequence, eos_token_ids: tuple[int, ...]) -> SamplingRow:
        """Read a row off a sequence."""
        params = sequence.params
        repetition = params.repetition_penalty != 1.0
        prompt = sequence.token_ids[: sequence.num_prompt_tokens] if repetition else []
        return cls(
            params=params,
            seed=sequence.seed,
            num_output_tokens=sequence.num_output_tokens,
            prompt_token_ids=prompt,
            output_counts=sequence.output_counts,
            stop_ids=(*eos_token_ids, *params.stop_token_ids),
            allowed=None if sequence.constraint is None else sequence.constraint.allowed(),
        )


def uniform(seed: int, position: int, stream: bytes = b"") -> float:
    """Return a number in [0, 1) that depends on seed, position and stream alone.

    Args:
        seed: Of the completion.
        position: Of the output token.
        stream: Numbers of different streams are independent; outputs are drawn from the unnamed.
    """
    raw = struct.pack("<QQ", seed & (2**64 - 1), position)
    digest = hashlib.blake2b(raw, digest_size=8, person=stream).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2.0**53


def derive_seed(seed: int, index: int) -> int:
    """Return the seed of completion ``index``; completion 0 keeps the request's own."""
    if index == 0:
        return seed
    raw = struct.pack("<QQ", seed & (2**64 - 1), index)
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8, person=b"fork").digest(), "little")


def sample(
    logits: torch.Tensor, rows: list[SamplingRow], draw: DrawTokens = draw_tokens
) -> list[int]:
    """Choose one token per row.

    Args:
        logits: float32 ``(num_rows, vocab_size)``; not changed.
        rows: One per row of ``logits``.
        draw: The op that draws where the temperature is above 0.

    Returns:
        Token ids.
    """
    if not rows:
        return []
    processed = process_logits(logits, rows)
    drawn = [i for i, row in enumerate(rows) if not row.params.is_greedy]
    if len(drawn) == len(rows):
        return _draw(processed, rows, draw)
    tokens = processed.argmax(dim=-1).tolist()  # the first of equals
    if drawn:
        found = _draw(processed[drawn], [rows[i] for i in drawn], draw)
        for i, token in zip(drawn, found, strict=True):
            tokens[i] = token
    return tokens


def _draw(logits: torch.Tensor, rows: list[SamplingRow], draw: DrawTokens) -> list[int]:
    numbers = [uniform(row.seed, row.num_output_tokens) for row in rows]
    return draw(logits, _draw_params(rows), numbers)


def process_logits(logits: torch.Tensor, rows: list[SamplingRow]) -> torch.Tensor:
    """Apply bias, penalties and the min_tokens mask; the input itself when none is asked for."""
    changed = [i for i, row in enumerate(rows) if changes_logits(row)]
    if not changed:
        return logits
    processed = logits.clone()
    for i in changed:
        _process_row(processed[i], rows[i])
    return processed


def probabilities(logits: torch.Tensor, rows: list[SamplingRow]) -> torch.Tensor:
    """Return the distribution each row draws from, float64 ``(num_rows, vocab_size)``.

    Args:
        logits: Processed logits of rows with temperature above 0.
        rows: One per row.
    """
    return distribution(logits, _draw_params(rows))


def _draw_params(rows: list[SamplingRow]) -> DrawParams:
    params = [row.params for row in rows]
    return DrawParams(
        [p.temperature for p in params],
        [p.min_p for p in params],
        [p.top_k for p in params],
        [p.top_p for p in params],
    )


def changes_logits(row: SamplingRow) -> bool:
    """Tell whether anything but temperature and filters acts on a row."""
    p = row.params
    penalised = p.repetition_penalty != 1.0 or (
        bool(row.output_counts) and (p.presence_penalty != 0.0 or p.frequency_penalty != 0.0)
    )
    masked = row.allowed is not None or row.num_output_tokens < p.min_tokens
    return bool(p.logit_bias) or penalised or masked


def _process_row(logits: torch.Tensor, row: SamplingRow) -> None:
    """Change one row ``(vocab_size,)`` in place."""
    p = row.params
    if p.logit_bias:
        ids, bias = _tensors(p.logit_bias.items(), logits)
        logits[ids] += bias
    if p.repetition_penalty != 1.0:
        seen = set(row.prompt_token_ids) | set(row.output_counts)
        ids = torch.tensor(sorted(seen), dtype=torch.int64, device=logits.device)
        values = logits[ids]
        penalty = p.repetition_penalty
        logits[ids] = torch.where(values > 0, values / penalty, values * penalty)
    if row.output_counts and (p.presence_penalty or p.frequency_penalty):
        ids, counts = _tensors(row.output_counts.items(), logits)
        logits[ids] -= p.presence_penalty + p.frequency_penalty * counts
    if row.allowed is not None:
        _keep_allowed(logits, row.allowed)
    if row.num_output_tokens < p.min_tokens and row.stop_ids:
        ids = list(row.stop_ids)
        held = logits[ids]
        logits[ids] = float("-inf")
        if row.allowed is not None and bool((logits == float("-inf")).all()):
            logits[ids] = held  # the constraint allows nothing but an end: it wins


def _keep_allowed(logits: torch.Tensor, allowed: torch.Tensor) -> None:
    """Mask one row ``(vocab_size,)`` by a constraint, which may know fewer ids than it has."""
    num_known = min(allowed.shape[0], logits.shape[0])
    logits[:num_known].masked_fill_(~allowed[:num_known].to(logits.device), float("-inf"))
    logits[num_known:] = float("-inf")


def _tensors(
    items: Iterable[tuple[int, float]], like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    ids, values = zip(*items, strict=True)
    return (
        torch.tensor(ids, dtype=torch.int64, device=like.device),
        torch.tensor(values, dtype=like.dtype, device=like.device),
    )


def position_logprobs(
    logits: torch.Tensor, chosen: list[int], num_alternatives: list[int]
) -> list[PositionLogprobs]:
    """Describe the chosen token and the best alternatives of each row.

    Args:
        logits: Raw float32 logits ``(num_rows, vocab_size)``.
        chosen: The token taken (or given) at each row.
        num_alternatives: How many of the best to report per row.

    Returns:
        Per row, candidates by token id, the chosen one included.
    """
    described: list[PositionLogprobs] = []
    for start in range(0, len(chosen), _DESCRIBED_ROWS):
        block = slice(start, start + _DESCRIBED_ROWS)
        described += _describe(logits[block], chosen[block], num_alternatives[block])
    return described


def _describe(
    logits: torch.Tensor, chosen: list[int], num_alternatives: list[int]
) -> list[PositionLogprobs]:
    from infopt.outputs import Logprob

    taken = torch.tensor(chosen, dtype=torch.int64, device=logits.device).unsqueeze(1)
    # Not logsumexp: of one row alone it adds up in another order than of several, on two threads.
    logprobs = logits.log_softmax(dim=-1)
    taken_logits = logits.gather(1, taken)
    ids = torch.arange(logits.shape[1], device=logits.device)
    ahead = (logits > taken_logits) | ((logits == taken_logits) & (ids < taken))
    ranks = (ahead.sum(dim=-1) + 1).tolist()
    values = logprobs.gather(1, taken).squeeze(1).tolist()
    most = max(num_alternatives, default=0)
    best = _best(logprobs, most) if most else [[] for _ in chosen]
    rows: list[PositionLogprobs] = []
    for i, token in enumerate(chosen):
        row = {token: Logprob(max(values[i], LOGPROB_FLOOR), ranks[i])}
        for rank, (other, value) in enumerate(best[i][: num_alternatives[i]], start=1):
            row.setdefault(other, Logprob(max(value, LOGPROB_FLOOR), rank))
        rows.append(row)
    return rows


LOGPROB_FLOOR = -9999.0
"""Reported in place of minus infinity (padding ids), which JSON cannot carry."""


def _best(logprobs: torch.Tensor, count: int) -> list[list[tuple[int, float]]]:
    """Return the best ``count`` ids with values per row; of equals the lowest ids first."""
    count = min(count, logprobs.shape[1])
    rows = []
    for row in logprobs:
        threshold = row.topk(count).values[-1]
        ids = (row >= threshold).nonzero().squeeze(1)
        order = row[ids].argsort(descending=True, stable=True)[:count]
        rows.append(list(zip(ids[order].tolist(), row[ids[order]].tolist(), strict=True)))
    return rows
