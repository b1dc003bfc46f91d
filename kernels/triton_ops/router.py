"""Router of a mixture of experts: the best k of each token, and their weights.

Scores are a softmax or a sigmoid of the logits. A bias, where there is one, decides who is chosen
but not the weights (auxiliary-loss-free balancing, arXiv 2408.15664). With groups, only the experts
of the best groups can be chosen (arXiv 2412.19437); a group is as good as its best expert, or as
the sum of its best two. Ties go to the lowest id. One token per program, in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from infopt.kernels.triton_ops.common import (
    FLOAT_DTYPES,
    check,
    check_contiguous,
    check_rows_contiguous,
    power_of_two,
    refuse,
)

SCORINGS = ("softmax", "sigmoid")
MAX_EXPERTS = 1024


@triton.jit
def _keep_best_groups(
    choice, NUM_GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, BEST_TWO: tl.constexpr
):
    """Set the experts outside the best groups to minus infinity."""
    SIZE: tl.constexpr = choice.shape[0] // NUM_GROUPS
    by_group = tl.reshape(choice, (NUM_GROUPS, SIZE))
    value = tl.max(by_group, axis=1)
    if BEST_TWO:
        best = tl.argmax(by_group, axis=1)
        rest = tl.where(tl.arange(0, SIZE)[None, :] == best[:, None], float("-inf"), by_group)
        value += tl.max(rest, axis=1)
    groups = tl.arange(0, NUM_GROUPS)
    kept = groups < 0
    for _ in tl.static_range(TOP_GROUPS):
        best_group = tl.argmax(value, axis=0)
        kept = kept | (groups == best_group)
        value = tl.where(groups == best_group, float("-inf"), value)
    return tl.reshape(tl.where(kept[:, None], by_group, float("-inf")), (NUM_GROUPS * SIZE,))


@triton.jit
def router_kernel(
    logits,
    bias,
    ids,
    weights,
    num_experts,
    logits_stride,
    factor,
    K: tl.constexpr,
    SIGMOID: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    BEST_TWO: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Route token ``program_id(0)``."""
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, BLOCK)
    inside = experts < num_experts
    values = tl.load(logits + token * logits_stride + experts, mask=inside, other=float("-inf"))
    values = values.to(tl.float32)
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-values))
    else:
        powers = tl.exp(values - tl.max(values, axis=0))
        scores = powers / tl.sum(powers, axis=0)
    choice = scores
    if HAS_BIAS:
        choice += tl.load(bias + experts, mask=inside, other=0.0)
    choice = tl.where(inside, choice, float("-inf"))
    if NUM_GROUPS > 1:
        choice = _keep_best_groups(choice, NUM_GROUPS, TOP_GROUPS, BEST_TWO)
    places = tl.arange(0, BLOCK_K)
    chosen = tl.zeros([BLOCK_K], tl.int32)
    shares = tl.zeros([BLOCK_K], tl.float32)
    for place in tl.static_range(K):
        best = tl.argmax(choice, axis=0)
        share = tl.sum(tl.where(experts == best, scores, 0.0), axis=0)
        chosen = tl.where(places == place, best, chosen)
        shares = tl.where(places == place, share, shares)
        choice = tl.where(experts == best, float("-inf"), choice)
    if RENORMALIZE:
        shares = shares / (tl.sum(shares, axis=0) + 1e-20)
    tl.store(ids + token * K + places, chosen, mask=places < K)
    tl.store(weights + token * K + places, shares * factor, mask=places < K)


def route(
    logits: torch.Tensor,
    k: int,
    *,
    scoring: str = "softmax",
    bias: torch.Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    best_two: bool = False,
    renormalize: bool = True,
    factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts.

    Args:
        logits: ``(num_tokens, num_experts)``; rows may be strided.
        k: Experts per token.
        scoring: ``softmax`` or ``sigmoid``.
        bias: float32 ``(num_experts,)``, added to the scores for the choice alone.
        num_groups: Groups of consecutive experts, a power of two that leaves a power of two each.
        top_groups: Groups that experts may come from.
        best_two: A group is worth the sum of its best two experts, not its best one.
        renormalize: Make the weights of a token sum to 1.
        factor: On the weights.

    Returns:
        int32 ids ``(num_tokens, k)``, best first, and their float32 weights.

    Raises:
        KernelArgumentError: For wrong shapes, types, layouts, devices or options.
    """
    check("logits", logits, (None, None), FLOAT_DTYPES)
    check_rows_contiguous("logits", logits)
    num_tokens, num_experts = logits.shape
    if bias is not None:
        check("bias", bias, (num_experts,), torch.float32, like=logits)
        check_contiguous("bias", bias)
    _check_options(num_experts, k, scoring, num_groups, top_groups, best_two)
    ids = torch.empty((num_tokens, k), dtype=torch.int32, device=logits.device)
    weights = torch.empty((num_tokens, k), dtype=torch.float32, device=logits.device)
    if num_tokens == 0:
        return ids, weights
    router_kernel[(num_tokens,)](
        logits,
        weights if bias is None else bias,
        ids,
        weights,
        num_experts,
        logits.stride(0),
        factor,
        K=k,
        SIGMOID=scoring == "sigmoid",
        HAS_BIAS=bias is not None,
        NUM_GROUPS=num_groups,
        TOP_GROUPS=top_groups,
        BEST_TWO=best_two,
        RENORMALIZE=renormalize,
        BLOCK=power_of_two(num_experts),
        BLOCK_K=power_of_two(k),
        num_warps=1,
    )
    return ids, weights


def _check_options(num_experts, k, scoring, num_groups, top_groups, best_two) -> None:
    if num_experts > MAX_EXPERTS:
        refuse("logits", num_experts, f"has {num_experts} experts, the limit is {MAX_EXPERTS}")
    if scoring not in SCORINGS:
        refuse("scoring", scoring, f"must be {' or '.join(SCORINGS)}, got {scoring!r}")
    size = num_experts // max(num_groups, 1)
    even = power_of_two(num_groups) * power_of_two(size) == num_groups * size == num_experts
    if num_groups != 1 and not even:
        what = f"must cut {num_experts} experts into powers of two, got {num_groups}"
        refuse("num_groups", num_groups, what)
    if not 1 <= top_groups <= num_groups:
        refuse("top_groups", top_groups, f"must be in 1 .. {num_groups}, got {top_groups}")
    if best_two and size < 2:
        refuse("best_two", best_two, f"needs two experts in a group, there is {size}")
    if not 1 <= k <= top_groups * size:
        refuse("k", k, f"must be in 1 .. {top_groups * size}, got {k}")
