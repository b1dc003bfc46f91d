"""Raw logits at every position of a sequence, computed beside whatever is queued."""

from __future__ import annotations

import torch

from infopt.cache.manager import CacheManager
from infopt.engine.runner import ModelRunner
from infopt.engine.sequence import Sequence
from infopt.engine.step_plan import ScheduledSequence, StepPlan
from infopt.errors import CapacityError


def compute_all_logits(
    runner: ModelRunner, cache: CacheManager, sequence: Sequence, chunk: int
) -> torch.Tensor:
    """Compute the raw logits of a sequence of which nothing is stored; its pages are freed.

    Args:
        runner: Runs the model.
        cache: Gives pages.
        sequence: Known to nobody else.
        chunk: Tokens per step.

    Returns:
        float32 ``(num_tokens, vocab_size)``.

    Raises:
        CapacityError: If other requests leave too few pages.
    """
    token_ids, blocks = sequence.token_ids, []
    try:
        for start in range(0, len(token_ids), chunk):
            num_tokens = min(chunk, len(token_ids) - start)
            if not cache.allocate(sequence.cache, start + num_tokens):
                raise CapacityError(
                    f"{len(token_ids)} tokens need more pages than other requests leave free.",
                    field="token_ids",
                    value=len(token_ids),
                    remedy="Wait for them to finish, or raise kv_cache_memory_gib.",
                )
            plan = StepPlan([ScheduledSequence(sequence, start, num_tokens)])
            hidden = runner.hidden(runner.build(plan, list(range(num_tokens))))
            blocks.extend(runner.logit_blocks(hidden))
            cache.commit(sequence.cache, token_ids, start + num_tokens)
    finally:
        cache.free(sequence.cache)
    return torch.cat(blocks)
