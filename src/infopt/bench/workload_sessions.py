"""Workloads whose prompts share beginnings: conversations, and sessions in the form of a trace."""

from __future__ import annotations

import numpy as np

from infopt.bench.arrivals import ArrivalSpec, arrival_times
from infopt.bench.lengths import LengthSpec, sample_lengths
from infopt.bench.options import check_count, check_positive
from infopt.bench.traces import TraceRequest
from infopt.bench.workload_trace import trace_requests
from infopt.bench.workload_types import WORKLOADS, WorkloadContext, WorkloadRequest
from infopt.errors import WorkloadError


@WORKLOADS.register("multi-turn")
def multi_turn(
    ctx: WorkloadContext,
    *,
    num_conversations: int,
    num_turns: int,
    user_tokens: LengthSpec,
    answer_tokens: LengthSpec,
    output_tokens: LengthSpec,
    system_tokens: int = 0,
    arrivals: ArrivalSpec = "all-at-once",
) -> list[WorkloadRequest]:
    """Conversations: the prompt of a turn is everything before it, and a few tokens more.

    First come the first turns of all conversations, then the second ones, and so on. The answers in
    a prompt are text like the rest, so that all configurations are asked the same.
    """
    conversations = check_count("num_conversations", num_conversations)
    turns = check_count("num_turns", num_turns)
    count = conversations * turns
    times = arrival_times(arrivals, count, ctx.rng("arrivals"))
    asked = sample_lengths(user_tokens, count, ctx.rng("user lengths"))
    told = sample_lengths(answer_tokens, count, ctx.rng("answer lengths"))
    outputs = sample_lengths(output_tokens, count, ctx.rng("output lengths"))
    rng = ctx.rng("text")
    system: list[int] = []
    if system_tokens:
        length = check_count("system_tokens", system_tokens)
        system = ctx.tokens.take(length, ctx.rng("system"), label="Rules. ")
    prompts = [list(system) for _ in range(conversations)]
    requests = []
    for index in range(count):
        turn, who = divmod(index, conversations)
        prompt = prompts[who]
        prompt += ctx.tokens.take(asked[index], rng, label=f"{who}. ", is_start=not prompt)
        requests.append(
            WorkloadRequest(
                request_id=f"turn-{turn}-of-{who}",
                arrival_s=times[index],
                prompt_token_ids=list(prompt),
                max_tokens=outputs[index],
                prefix_group=f"conversation-{who}",
            )
        )
        prompt += ctx.tokens.take(told[index], rng, is_start=False)
    return requests


@WORKLOADS.register("sessions")
def sessions(
    ctx: WorkloadContext,
    *,
    num_requests: int,
    num_documents: int,
    document_blocks: int,
    block_tokens: int,
    output_tokens: LengthSpec,
    continue_share: float = 0.5,
    max_blocks: int | None = None,
    zipf_alpha: float = 1.0,
    arrivals: ArrivalSpec = "all-at-once",
) -> list[WorkloadRequest]:
    """Sessions about documents, made up in the form of Mooncake's trace: lists of block ids.

    A request either goes on with an earlier session (its blocks and one more) or begins one about a
    document; popular documents come more often (Zipf). Equal ids are equal stretches of tokens.

    Args:
        ctx: Tokens and seed.
        num_requests: Requests.
        num_documents: Documents that sessions begin with.
        document_blocks: Blocks of a document.
        block_tokens: Tokens of a block.
        output_tokens: Lengths of answers.
        continue_share: Probability that a request goes on with a session.
        max_blocks: Most blocks of a prompt; a longer session begins anew. None: no limit.
        zipf_alpha: Exponent of the popularity; 0: all alike.
        arrivals: When they come.
    """
    count = check_count("num_requests", num_requests)
    times = arrival_times(arrivals, count, ctx.rng("arrivals"))
    outputs = sample_lengths(output_tokens, count, ctx.rng("output lengths"))
    lists = session_blocks(
        ctx.rng("sessions"),
        count,
        num_documents=check_count("num_documents", num_documents),
        document_blocks=check_count("document_blocks", document_blocks),
        continue_share=continue_share,
        max_blocks=max_blocks,
        zipf_alpha=zipf_alpha,
    )
    tokens = check_count("block_tokens", block_tokens)
    made = [
        TraceRequest(times[i], tokens * len(blocks), outputs[i], tuple(blocks), tokens)
        for i, blocks in enumerate(lists)
    ]
    return trace_requests(ctx, made, "session")


def session_blocks(
    rng: np.random.Generator,
    count: int,
    *,
    num_documents: int,
    document_blocks: int,
    continue_share: float,
    max_blocks: int | None,
    zipf_alpha: float,
) -> list[list[int]]:
    """Return one list of block ids per request; see `sessions`.

    Raises:
        WorkloadError: A share outside [0, 1], or documents longer than ``max_blocks``.
    """
    if not 0 <= continue_share <= 1:
        raise WorkloadError(
            f"continue_share must be in [0, 1], got {continue_share}.",
            field="continue_share",
            value=continue_share,
        )
    if max_blocks is not None and max_blocks <= document_blocks:
        raise WorkloadError(
            f"max_blocks={max_blocks} leaves no block for a question behind a document of "
            f"{document_blocks}.",
            field="max_blocks",
            value=max_blocks,
        )
    if zipf_alpha:
        check_positive("zipf_alpha", zipf_alpha)
    weights = np.arange(1, num_documents + 1, dtype=np.float64) ** -zipf_alpha
    fresh = num_documents * document_blocks  # ids below are the documents'
    live: list[list[int]] = []
    made = []
    for _ in range(count):
        open_ones = [s for s in live if max_blocks is None or len(s) < max_blocks]
        if open_ones and rng.random() < continue_share:
            session = open_ones[int(rng.integers(len(open_ones)))]
        else:
            document = int(rng.choice(num_documents, p=weights / weights.sum()))
            first = document * document_blocks
            session = list(range(first, first + document_blocks))
            live.append(session)
        session.append(fresh)
        fresh += 1
        made.append(list(session))
    return made
