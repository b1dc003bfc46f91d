"""What a prefix cache saved in a run: hits, time to the first token, FLOPs, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from infopt.bench.load_result import LoadResult, RequestRecord
from infopt.bench.prefix_sharing import saved_share, shareable_tokens
from infopt.experiments.arms import Arm
from infopt.llm import LLM
from infopt.models.config import ModelConfig


def sharing_probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
    """Return what the last run of an arm shared, request by request in order of arrival.

    Time to the first token is counted from the first step that worked on a request: waiting for
    others is another question.
    """
    del reference
    records = arm.results[-1].records
    prompts = [r.request.prompt_token_ids for r in records]
    lengths, cached = [len(p) for p in prompts], [r.num_cached_tokens for r in records]
    shareable = shareable_tokens(prompts, arm.llm.config.block_size)
    services = [_service_s(r) for r in records]
    return {
        "extra": {
            "sharing_hit_share": sum(cached) / sum(lengths),
            "sharing_best_hit_share": sum(shareable) / sum(lengths),
            "sharing_saved_flops_share": _saved(arm.llm, lengths, cached),
            "sharing_service_ttft_s": median(s for s in services if s is not None),
            "sharing_pool_tokens": arm.llm.stats()["pages"]["total"] * arm.llm.config.block_size,
        },
        "samples": {
            "sharing.prompt_tokens": lengths,
            "sharing.cached_tokens": cached,
            "sharing.shareable_tokens": shareable,
            "sharing.service_ttft_s": services,
            "sharing.kept_pages": kept_pages(arm.llm, arm.results[-1]),
        },
    }


def kept_pages(llm: LLM, result: LoadResult) -> list[int]:
    """Return how many leading pages of each prompt are still cached after a run.

    Pages that were released longest ago go first, and of one sequence the later ones, so the newest
    prompts are there in full, older ones with their beginnings, and the oldest not at all.
    """
    match = llm.engine.cache.match_prefix
    return [len(match([*r.request.prompt_token_ids, 0])) for r in result.records]


def _saved(llm: LLM, lengths: Sequence[int], cached: Sequence[int]) -> float | None:
    """Return the saved share of prefill FLOPs; None for a model whose layers are not counted."""
    config = llm.model_config
    return saved_share(config, lengths, cached) if isinstance(config, ModelConfig) else None


def _service_s(record: RequestRecord) -> float | None:
    metrics = record.output.outputs[0].metrics if record.output else None
    if metrics is None or metrics.first_token_s is None or metrics.first_scheduled_s is None:
        return None
    return metrics.first_token_s - metrics.first_scheduled_s
