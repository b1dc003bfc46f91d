"""Verifies drafted tokens by rejection sampling (arXiv 2211.17192, 2302.01318).

Draft token d at place i is accepted while ``u_i * q_i(d) <= p_i(d)`` (p: target, q: draft). At the
first refusal the next token is drawn from ``max(p_i - q_i, 0)``, and where everything is accepted
from the target's next distribution: the result is distributed as if the target had drawn all
tokens. One uniform number picks from the cumulative sums in id order. A deterministic drafter (a
copied text) is the case that q is 1 at its token. One sequence per program.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops.common import check, check_contiguous

BLOCK = 4096
"""Entries of the vocabulary per step."""


@triton.jit
def _residual(target, draft, drafted, draft_size, ids, size, HAS_DRAFT: tl.constexpr):
    """Load ``max(target - draft, 0)`` of some ids; the draft counts below ``draft_size``."""
    mass = tl.load(target + ids, mask=ids < size, other=0.0)
    if HAS_DRAFT:
        known = tl.load(draft + ids, mask=ids < draft_size, other=0.0)
    else:
        known = tl.where((ids == drafted) & (ids < draft_size), 1.0, 0.0)
    return tl.maximum(mass - known, 0.0)


@triton.jit
def rejection_kernel(
    drafted,
    counts,
    target,
    draft,
    uniforms,
    accepted,
    next_token,
    num_drafted,
    size,
    HAS_DRAFT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Verify sequence ``program_id(0)``."""
    sequence = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + sequence)
    own_target = target + sequence * (num_drafted + 1) * size
    own_draft = draft + sequence * num_drafted * size
    place = 0
    going = 1
    for i in range(0, count):
        token = tl.load(drafted + sequence * num_drafted + i)
        p = tl.load(own_target + i * size + token)
        q = 1.0
        if HAS_DRAFT:
            q = tl.load(own_draft + i * size + token)
        u = tl.load(uniforms + sequence * (num_drafted + 1) + i)
        going = going * tl.where(u * q <= p, 1, 0)
        place += going
    draft_size = tl.where(place < count, size, 0)  # all accepted: nothing is taken away
    at = tl.minimum(place, num_drafted - 1)
    token = tl.load(drafted + sequence * num_drafted + at)
    own_target += place * size
    own_draft += at * size
    total = 0.0
    for start in range(0, size, BLOCK_SIZE):
        ids = start + tl.arange(0, BLOCK_SIZE)
        mass = _residual(own_target, own_draft, token, draft_size, ids, size, HAS_DRAFT)
        total += tl.sum(mass, axis=0)
    wanted = total * tl.load(uniforms + sequence * (num_drafted + 1) + num_drafted)
    below = 0
    last = 0
    passed = 0.0
    for start in range(0, size, BLOCK_SIZE):
        ids = start + tl.arange(0, BLOCK_SIZE)
        mass = _residual(own_target, own_draft, token, draft_size, ids, size, HAS_DRAFT)
        sums = passed + tl.cumsum(mass, axis=0)
        below += tl.sum(tl.where((ids < size) & (sums <= wanted), 1, 0), axis=0)
        # Rounding can leave the wanted sum out of reach: then the last id with mass is taken.
        last = tl.maximum(last, tl.max(tl.where(mass > 0, ids, 0), axis=0))
        passed += tl.sum(mass, axis=0)
    tl.store(accepted + sequence, place)
    tl.store(next_token + sequence, tl.minimum(below, last))


def verify_drafts(
    drafted: torch.Tensor,
    counts: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor | None,
    uniforms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept or refuse drafted tokens, and draw the token that follows.

    Args:
        drafted: int64 ``(num_seqs, k)``, k at least 1.
        counts: int32 ``(num_seqs,)``: how many of them count, up to k (not checked: that would
            wait for the device).
        target: float32 ``(num_seqs, k + 1, vocab_size)`` probabilities; row ``counts`` follows the
            last draft.
        draft: float32 ``(num_seqs, k, vocab_size)`` probabilities, or None for a deterministic
            drafter.
        uniforms: float32 ``(num_seqs, k + 1)`` in [0, 1): k for the tests, the last for the draw.

    Returns:
        int32 ``(num_seqs,)`` accepted tokens, and int32 ``(num_seqs,)`` next tokens.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts or devices.
    """
    check("drafted", drafted, (None, None), torch.int64)
    num_seqs, k = drafted.shape
    size = target.shape[-1]
    check("counts", counts, (num_seqs,), torch.int32, like=drafted)
    check("target", target, (num_seqs, k + 1, size), torch.float32, like=drafted)
    if draft is not None:
        check("draft", draft, (num_seqs, k, size), torch.float32, like=drafted)
    check("uniforms", uniforms, (num_seqs, k + 1), torch.float32, like=drafted)
    given = {"drafted": drafted, "counts": counts, "target": target, "uniforms": uniforms}
    for name, tensor in given.items() if draft is None else (given | {"draft": draft}).items():
        check_contiguous(name, tensor)
    accepted = torch.empty(num_seqs, dtype=torch.int32, device=drafted.device)
    next_token = torch.empty_like(accepted)
    if num_seqs:
        rejection_kernel[(num_seqs,)](
            drafted,
            counts,
            target,
            target if draft is None else draft,
            uniforms,
            accepted,
            next_token,
            k,
            size,
            HAS_DRAFT=draft is not None,
            BLOCK_SIZE=BLOCK,
            num_warps=8,
        )
    return accepted, next_token
