"""Workloads whose answers repeat the prompt: `summarize`, `edit` and `edit-code`.

Prompt-lookup speculation and prefix reuse live on such input. Prompts go through the model's chat
template where it has one, so their lengths are the text's plus the instruction's.
"""

from __future__ import annotations

from infopt.bench.arrivals import ArrivalSpec, arrival_times
from infopt.bench.lengths import LengthSpec, sample_lengths
from infopt.bench.options import check_count
from infopt.bench.workload_types import WORKLOADS, WorkloadContext, WorkloadRequest

_SUMMARIZE = "Summarize the following text in a few sentences, quoting its key phrases."

_EDITS = (
    "Repeat the following text exactly, but write the first word of each line in capitals.",
    "Copy the following text and correct any spelling mistakes. Change nothing else.",
    "Rewrite the following text word for word, replacing 'object' with 'value'.",
)

_CODE_EDITS = (
    "Write the following Python code again with a comment at the end of each function.",
    "Rewrite the following Python code, replacing single quotes with double quotes.",
    "Repeat the following Python code exactly, but rename the variable 'self' to 'this'.",
)


@WORKLOADS.register("summarize")
def summarize(
    ctx: WorkloadContext,
    *,
    num_requests: int,
    text_tokens: LengthSpec = 512,
    output_tokens: LengthSpec = 96,
    arrivals: ArrivalSpec = "all-at-once",
) -> list[WorkloadRequest]:
    """Long text in, short summary out."""
    prompts = _prompts(ctx, (_SUMMARIZE,), num_requests, text_tokens)
    return _requests(ctx, "summarize", prompts, output_tokens, arrivals)


@WORKLOADS.register("edit")
def edit(
    ctx: WorkloadContext,
    *,
    num_requests: int,
    text_tokens: LengthSpec = 192,
    output_tokens: LengthSpec = 192,
    arrivals: ArrivalSpec = "all-at-once",
) -> list[WorkloadRequest]:
    """Text in, almost the same text out."""
    prompts = _prompts(ctx, _EDITS, num_requests, text_tokens)
    return _requests(ctx, "edit", prompts, output_tokens, arrivals)


@WORKLOADS.register("edit-code")
def edit_code(
    ctx: WorkloadContext,
    *,
    num_requests: int,
    text_tokens: LengthSpec = 192,
    output_tokens: LengthSpec = 192,
    arrivals: ArrivalSpec = "all-at-once",
) -> list[WorkloadRequest]:
    """Python source in, almost the same source out."""
    prompts = _prompts(ctx, _CODE_EDITS, num_requests, text_tokens)
    return _requests(ctx, "edit-code", prompts, output_tokens, arrivals)


def _prompts(
    ctx: WorkloadContext,
    instructions: tuple[str, ...],
    num_requests: int,
    text_tokens: LengthSpec,
) -> list[list[int]]:
    count = check_count("num_requests", num_requests)
    lengths = sample_lengths(text_tokens, count, ctx.rng("text lengths"))
    rng = ctx.rng("text")
    bodies = [ctx.tokens.take(length, rng, is_start=False) for length in lengths]
    return [
        ctx.tokens.user_turn(instructions[i % len(instructions)], body)
        for i, body in enumerate(bodies)
    ]


def _requests(
    ctx: WorkloadContext,
    name: str,
    prompts: list[list[int]],
    output_tokens: LengthSpec,
    arrivals: ArrivalSpec,
) -> list[WorkloadRequest]:
    times = arrival_times(arrivals, len(prompts), ctx.rng("arrivals"))
    outputs = sample_lengths(output_tokens, len(prompts), ctx.rng("output lengths"))
    return [
        WorkloadRequest(f"{name}-{i}", times[i], prompt, outputs[i])
        for i, prompt in enumerate(prompts)
    ]
