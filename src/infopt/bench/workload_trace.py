"""The `trace` workload: arrivals, lengths and shared prefixes of a recorded trace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from infopt.bench.traces import TooLong, TraceRequest, read_trace, scale_trace
from infopt.bench.workload_types import WORKLOADS, WorkloadContext, WorkloadRequest
from infopt.errors import WorkloadError


@WORKLOADS.register("trace")
def trace(
    ctx: WorkloadContext,
    *,
    path: str | Path,
    num_requests: int | None = None,
    time_scale: float = 1.0,
    length_scale: float = 1.0,
    output_scale: float | None = None,
    max_total_tokens: int | None = None,
    too_long: TooLong = "error",
) -> list[WorkloadRequest]:
    """Replay a trace file (see `infopt.bench.traces`), scaled to fit.

    Equal block ids become equal stretches of tokens, so a prefix cache finds exactly the sharing
    that the trace recorded.
    """
    scaled = scale_trace(
        read_trace(path, limit=num_requests),
        time_scale=time_scale,
        length_scale=length_scale,
        output_scale=output_scale,
        max_total_tokens=max_total_tokens,
        too_long=too_long,
    )
    if not scaled:
        raise WorkloadError(
            f"No request of trace {str(path)!r} has at most {max_total_tokens} tokens.",
            field="max_total_tokens",
            value=max_total_tokens,
            remedy="Lower length_scale.",
        )
    return trace_requests(ctx, scaled, "trace")


def trace_requests(
    ctx: WorkloadContext, requests: list[TraceRequest], name: str
) -> list[WorkloadRequest]:
    """Turn lines of a trace into requests; arrivals count from the first.

    Args:
        ctx: Tokens and seed.
        requests: At least one, in time order.
        name: What their ids begin with.
    """
    first_blocks = Counter(r.block_ids[0] for r in requests if r.block_ids)
    return [
        WorkloadRequest(
            request_id=f"{name}-{i}",
            arrival_s=r.arrival_s - requests[0].arrival_s,
            prompt_token_ids=_prompt(ctx, i, r),
            max_tokens=r.num_output_tokens,
            prefix_group=_group(r, first_blocks),
        )
        for i, r in enumerate(requests)
    ]


def _prompt(ctx: WorkloadContext, index: int, request: TraceRequest) -> list[int]:
    if not request.block_ids:
        rng = ctx.rng("trace", index)
        return ctx.tokens.take(request.num_prompt_tokens, rng, label=f"{index}. ")
    prompt: list[int] = []
    for position, block in enumerate(request.block_ids):
        prompt += ctx.tokens.take(
            request.block_tokens,
            ctx.rng("block", block),
            label=f"{block}. ",
            is_start=position == 0,
        )
    return prompt[: request.num_prompt_tokens]


def _group(request: TraceRequest, first_blocks: Counter[int]) -> str | None:
    if not request.block_ids or first_blocks[request.block_ids[0]] < 2:
        return None
    return f"block-{request.block_ids[0]}"
