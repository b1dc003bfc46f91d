"""Decode steps of a mixture of experts beside those of a dense model, and what the formula says.

The two take turns, and the ratio of their step times comes with its interval. Beside it stands the
ratio that follows from the weights that each step reads (`infopt.moe.theory`). Models that fit into
the processor's caches show another thing, what running experts costs: for the formula they have to
be larger (`infopt.bench.moe_pair_run` makes such).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from infopt.bench.closed import run_batch
from infopt.bench.paired import run_paired
from infopt.bench.stats import PairedRatio
from infopt.bench.workload_types import WorkloadRequest
from infopt.errors import MeasurementError
from infopt.llm import LLM
from infopt.models.config import ModelConfig
from infopt.moe.theory import MoeSize, time_ratio
from infopt.ops.experts import OneByOneExperts
from infopt.ops.mlp import SparseMlp


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """Decode steps of a model against those of the reference.

    Attributes:
        batch: Sequences of a step.
        ratio: Time of its step over that of the reference's.
        reference_s: Median time of a reference's step.
        step_s: Of its own.
    """

    batch: int
    ratio: PairedRatio
    reference_s: float
    step_s: float


def compare_decoding(
    reference: LLM, llm: LLM, requests: Sequence[WorkloadRequest], repeats: int
) -> DecodePoint:
    """Let two models serve the same requests in turn, and compare their decode steps.

    Args:
        reference: The model to divide by.
        llm: The other one.
        requests: Served at once; their prompts stay in the prefix cache from the warm-up on.
        repeats: Measured pairs.

    Raises:
        MeasurementError: There was no step in which all requests decoded.
    """
    arms = {
        "reference": lambda: _decode_step_s(reference, requests),
        "candidate": lambda: _decode_step_s(llm, requests),
    }
    paired = run_paired(arms, "reference", repeats, higher_is_better=False)
    return DecodePoint(
        len(requests),
        paired.ratios["candidate"],
        *(median(paired.samples[name]) for name in arms),
    )


def _decode_step_s(llm: LLM, requests: Sequence[WorkloadRequest]) -> float:
    """Return the median time of the steps that add one token to every request and do no more."""
    steps = run_batch(llm, requests, reset_prefix_cache=False).step_log
    times = [
        s.duration_s
        for s in steps
        if s.num_decode_tokens == len(requests) and not s.num_prefill_tokens
    ]
    if not times:
        raise MeasurementError(
            f"{len(requests)} requests never decoded together.",
            field="requests",
            value=len(requests),
            remedy="Raise max_num_seqs and max_num_batched_tokens, or ask for more output tokens.",
        )
    return median(times)


def moe_size(config: ModelConfig) -> MoeSize:
    """Return the weights that a decode step of a mixture reads, in parameters.

    The embedding is looked up, not read, so it counts once, as the head.

    Raises:
        MeasurementError: The model has no experts.
    """
    moe = config.moe
    if moe is None:
        raise MeasurementError(
            f"A {config.family} has no experts.", field="model", value=config.family
        )
    return MoeSize(
        shared=read_weights(config, 0.0),
        expert=moe.expert_parameters(config.hidden_size),
        num_layers=moe.num_sparse_layers,
        num_experts=moe.num_experts,
        top_k=moe.top_k,
    )


def read_weights(config: ModelConfig, num_experts: float) -> float:
    """Return the weights that a decode step reads with so many experts per sparse layer."""
    layers = config.num_layers * config.attention_parameters + config.mlp_parameters(num_experts)
    return layers + config.vocab_size * config.hidden_size


def expected_weights(config: ModelConfig, batch: int) -> float:
    """Return the weights that a decode step of so many sequences is expected to read."""
    moe = config.moe
    return read_weights(config, 0.0 if moe is None else moe.distinct_experts(batch))


def predicted_ratio(
    config: ModelConfig, reference: ModelConfig, batch: int, ridge_tokens: float | None = None
) -> float:
    """Return the time of a decode step over the reference's, from the weights they read.

    Args:
        config: A mixture or a dense model.
        reference: A dense model whose weights are stored in the same format.
        batch: Sequences of the step.
        ridge_tokens: See `infopt.moe.theory.time_ratio`.

    Raises:
        MeasurementError: The reference has experts.
    """
    if reference.moe is not None:
        raise MeasurementError(
            "The reference of a mixture must be dense.", field="reference", value=reference.family
        )
    dense = read_weights(reference, 0.0)
    if config.moe is None:
        return read_weights(config, 0.0) / dense  # both read and compute in proportion
    return time_ratio(moe_size(config), dense, batch, ridge_tokens=ridge_tokens)


def grouped_gain(llm: LLM, num_rows: int, repeats: int) -> PairedRatio:
    """Compare the grouped product of a model's experts with a loop over them.

    Both run the experts of all layers, one layer after the other, on the same rows with the same
    even choices. The loop uses the same products.

    Args:
        llm: A mixture.
        num_rows: Tokens.
        repeats: Measured pairs.

    Returns:
        Speed of the grouped product over that of the loop.

    Raises:
        MeasurementError: The model has no experts.
    """
    model = llm.engine.runner.model
    layers = [layer.mlp for layer in model.layers if isinstance(layer.mlp, SparseMlp)]
    if not layers:
        raise MeasurementError("The model has no experts.", field="model", value=llm.config.model)
    loops = [OneByOneExperts(mlp.spec, model.ops, "compared with the group") for mlp in layers]
    x, ids, weights = _even_choices(model.config, num_rows, model.dtype, model.device)
    run: dict[str, Callable[[], float]] = {
        "loop": lambda: _rate(loops, x, ids, weights),
        "grouped": lambda: _rate([mlp.experts for mlp in layers], x, ids, weights),
    }
    return run_paired(run, "loop", repeats).ratios["grouped"]


def _even_choices(
    config: ModelConfig, num_rows: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows, the experts of each, drawn evenly without repetition, and equal weights."""
    assert config.moe is not None
    generator = torch.Generator().manual_seed(0)
    keys = torch.rand(num_rows, config.moe.num_experts, generator=generator)
    ids = keys.argsort(dim=1)[:, : config.moe.top_k].contiguous()
    x = torch.randn(num_rows, config.hidden_size, generator=generator).to(dtype)
    weights = torch.full(ids.shape, 1.0 / config.moe.top_k)
    return x.to(device), ids.to(device), weights.to(device)


@torch.inference_mode()
def _rate(
    layers: Sequence[Callable[..., torch.Tensor]],
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
) -> float:
    """Return passes through all layers per second."""
    start = time.perf_counter()
    for experts in layers:
        experts(x, ids, weights)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return 1.0 / (time.perf_counter() - start)
