"""Workloads with made-up lengths: `synthetic`, `shared-prefix` and `long-context`."""

from __future__ import annotations

from infopt.bench.arrivals import ArrivalSpec, arrival_times
from infopt.bench.lengths import LengthSpec, sample_lengths
from infopt.bench.options import check_count
from infopt.bench.workload_types import WORKLOADS, WorkloadContext, WorkloadRequest


@WORKLOADS.register("synthetic")
def synthetic(
    ctx: WorkloadContext,
    *,
    num_requests: int,
    prompt_tokens: LengthSpec,
    output_tokens: LengthSpec,
    arrivals: ArrivalSpec = "all-at-once",
) -> list[WorkloadRequest]:
    """Independent prompts whose lengths and arrivals follow given distributions."""
    count = check_count("num_requests", num_requests)
    times = arrival_times(arrivals, count, ctx.rng("arrivals"))
    prompts = sample_lengths(prompt_tokens, count, ctx.rng("prompt lengths"))
    outputs = sample_lengths(output_tokens, count, ctx.rng("output lengths"))
    rng = ctx.rng("text")
    return [
        WorkloadRequest(
            request_id=f"synthetic-{i}",
            arrival_s=times[i],
            prompt_token_ids=ctx.tokens.take(prompts[i], rng, label=f"{i}. "),
            max_tokens=outputs[i],
        )
        for i in range(count)
    ]


@WORKLOADS.register("shared-prefix")
def shared_prefix(
    ctx: WorkloadContext,
    *,
    num_requests: int,
    num_groups: int,
    prefix_tokens: int,
    suffix_tokens: LengthSpec,
    output_tokens: LengthSpec,
    arrivals: ArrivalSpec = "all-at-once",
) -> list[WorkloadRequest]:
    """Requests in groups that begin with the same system prompt and go on differently.

    Request i belongs to group i modulo ``num_groups``: neighbours in time are of different groups,
    which is the hard case for a cache that forgets.
    """
    count = check_count("num_requests", num_requests)
    num_groups = check_count("num_groups", num_groups)
    length = check_count("prefix_tokens", prefix_tokens)
    prefix_rng, suffix_rng = ctx.rng("prefixes"), ctx.rng("text")
    prefixes = [
        ctx.tokens.take(length, prefix_rng, label=f"Manual {g}. ") for g in range(num_groups)
    ]
    times = arrival_times(arrivals, count, ctx.rng("arrivals"))
    suffixes = sample_lengths(suffix_tokens, count, ctx.rng("suffix lengths"))
    outputs = sample_lengths(output_tokens, count, ctx.rng("output lengths"))
    return [
        WorkloadRequest(
            request_id=f"shared-prefix-{i}",
            arrival_s=times[i],
            prompt_token_ids=prefixes[i % num_groups]
            + ctx.tokens.take(suffixes[i], suffix_rng, label=f"{i}. ", is_start=False),
            max_tokens=outputs[i],
            prefix_group=f"group-{i % num_groups}",
        )
        for i in range(count)
    ]


@WORKLOADS.register("long-context")
def long_context(
    ctx: WorkloadContext,
    *,
    num_requests: int,
    prompt_tokens: LengthSpec = 4096,
    output_tokens: LengthSpec = 32,
    arrivals: ArrivalSpec = "all-at-once",
) -> list[WorkloadRequest]:
    """Long prompts with short answers: the KV cache, not the weights, is most of what is read."""
    requests = synthetic(
        ctx,
        num_requests=num_requests,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        arrivals=arrivals,
    )
    return [
        WorkloadRequest(f"long-context-{i}", r.arrival_s, r.prompt_token_ids, r.max_tokens)
        for i, r in enumerate(requests)
    ]
