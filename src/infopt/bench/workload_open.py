"""Workloads whose answers are the model's own words: `chat`.

Nothing in the prompt says how the answer goes on, so this is the other end of the scale that
`infopt.bench.workload_grounded` begins.
"""

from __future__ import annotations

from infopt.bench.arrivals import ArrivalSpec, arrival_times
from infopt.bench.lengths import LengthSpec, sample_lengths
from infopt.bench.options import check_count
from infopt.bench.workload_types import WORKLOADS, WorkloadContext, WorkloadRequest

_ASKS = (
    "Explain to a child how {} works.",
    "Write the beginning of a story in which {} plays a part.",
    "What should a beginner know about {}?",
    "Give me an unusual opinion on {}.",
    "Write a friendly letter to a neighbour about {}.",
    "Describe {} as somebody would who has never seen it before.",
)
_TOPICS = (
    "a lighthouse",
    "baking bread",
    "a bicycle",
    "the night train",
    "a chess club",
    "growing tomatoes",
    "a thunderstorm",
    "learning the violin",
    "an old map",
    "the city library",
    "a rainy holiday",
    "beekeeping",
    "a broken clock",
    "mountain rescue",
    "a street market",
    "the first snow",
    "repairing a radio",
    "a long bridge",
    "keeping a diary",
    "the moon",
)


@WORKLOADS.register("chat")
def chat(
    ctx: WorkloadContext,
    *,
    num_requests: int,
    output_tokens: LengthSpec = 96,
    arrivals: ArrivalSpec = "all-at-once",
) -> list[WorkloadRequest]:
    """Short open questions; up to 120 different ones, then they come again with a number."""
    count = check_count("num_requests", num_requests)
    asks = [ask.format(topic) for ask in _ASKS for topic in _TOPICS]
    order = ctx.rng("text").permutation(len(asks))
    times = arrival_times(arrivals, count, ctx.rng("arrivals"))
    outputs = sample_lengths(output_tokens, count, ctx.rng("output lengths"))
    return [
        WorkloadRequest(f"chat-{i}", times[i], _prompt(ctx, asks[order[i % len(asks)]], i), n)
        for i, n in enumerate(outputs)
    ]


def _prompt(ctx: WorkloadContext, ask: str, index: int) -> list[int]:
    turn = index // (len(_ASKS) * len(_TOPICS))
    return ctx.tokens.user_turn(f"{ask} (Version {turn + 1}.)" if turn else ask, [])
