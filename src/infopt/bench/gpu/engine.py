"""The engine sections: agreement with transformers, rates beside it, energy, worth of graphs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from infopt.bench.gpu.budget import Budget
from infopt.bench.gpu.energy import joules_of
from infopt.bench.gpu.random_model import engine_like, make_peer
from infopt.bench.paired import run_paired
from infopt.errors import MeasurementError
from infopt.llm import LLM
from infopt.sampling_params import SamplingParams

PROMPT_TOKENS, DECODE_TOKENS = 128, 32
REPEATS = 4


def engine_section(
    shape: str, device: torch.device, budget: Budget, backend: str = "auto"
) -> dict[str, Any]:
    """Run a random model of a shape on both engines.

    Args:
        shape: Key of :data:`~infopt.bench.gpu.random_model.SHAPES`.
        device: Where to run.
        budget: Batch sizes that no time is left for are skipped.
        backend: Of the engine.
    """
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    peer = make_peer(shape, device, dtype)
    batches = (1, 8, 32) if device.type == "cuda" else (2,)
    prompt, decode = (PROMPT_TOKENS, DECODE_TOKENS) if device.type == "cuda" else (9, 3)
    llm = engine_like(
        shape,
        peer,
        dtype=str(dtype).removeprefix("torch."),
        device=device.type,
        backend=backend,
        max_num_seqs=max(batches),
        max_num_batched_tokens=4096 if device.type == "cuda" else 32,
        max_model_len=prompt + decode + 8,
        kv_cache_memory_gib=4.0 if device.type == "cuda" else 0.01,
        enable_prefix_caching=False,
    )
    report: dict[str, Any] = {"ops": llm.stats()["ops"], "decode": {}, "skipped": []}
    report["agreement"] = agreement(llm, peer, prompt)
    for batch in batches:
        if budget.is_spent:
            report["skipped"].append(f"decode {batch}")
            continue
        try:
            rates = decode_rates(llm, peer, batch, prompt, decode, budget)
        except MeasurementError as error:
            rates = {"reason": error.message}
        report["decode"][str(batch)] = rates
    report["graphs"] = graph_rates(llm, batches, prompt, decode, budget)
    del llm, peer
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return report


@torch.inference_mode()
def agreement(llm: LLM, peer: Any, num_tokens: int) -> dict[str, float]:
    """Compare logits over the same random ids.

    Returns:
        The median and largest relative error of a row, and the share of rows with the same best id.
    """
    ids = _random_ids(llm, 1, num_tokens, seed=7)[0]
    ours = llm.logits(ids).float().cpu()
    theirs = peer(torch.tensor([ids], device=peer.device)).logits[0].float().cpu()
    error = (ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)
    same = (ours.argmax(-1) == theirs.argmax(-1)).float().mean()
    return {
        "median_relative_error": float(error.median()),
        "max_relative_error": float(error.max()),
        "top1_agreement": float(same),
    }


def decode_rates(
    llm: LLM, peer: Any, batch: int, prompt: int, decode: int, budget: Budget
) -> dict[str, Any]:
    """Return decode tokens/s of both, paired, and joules per token.

    Each arm generates one token and then ``decode + 1``; the difference is decoding alone.
    """
    ids = _random_ids(llm, batch, prompt, seed=batch)
    tensor = torch.tensor(ids, device=peer.device)

    def ours(count: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        llm.generate(ids, params, use_tqdm=False)

    @torch.inference_mode()
    def theirs(count: int) -> None:
        peer.generate(
            tensor,
            attention_mask=torch.ones_like(tensor),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
        )

    arms = {"transformers": theirs, "infopt": ours}
    started = time.monotonic()
    rates = {name: _rate(run, batch, decode) for name, run in arms.items()}
    for rate in rates.values():
        rate()
    round_s = time.monotonic() - started
    repeats = max(1, min(REPEATS, int(budget.left_s / max(round_s, 1e-3)) - 1))
    paired = run_paired(rates, "transformers", repeats, num_warmup=0)
    energy = {}
    for name, run in arms.items():
        joules, source = joules_of(lambda run=run: run(decode + 1), peer.device)
        per_token = None if joules is None else joules / (batch * (decode + 1))
        energy[name] = {"joules_per_token": per_token, "source": source}
    return paired.to_dict() | {"unit": "tokens/s", "energy_with_prefill": energy}


def graph_rates(
    llm: LLM, batches: tuple[int, ...], prompt: int, decode: int, budget: Budget
) -> dict[str, Any]:
    """Return decode tokens/s with and without replayed steps, paired, by batch size.

    Returns:
        What the engine says of its graphs after the runs; where they are on, ``decode`` holds the
        ratios to single launches by batch size.
    """
    decoded: dict[str, Any] = {}
    for batch in batches if llm.engine.runner.graphs is not None else ():
        if budget.is_spent:
            decoded[str(batch)] = {"reason": "no time left"}
            continue
        try:
            decoded[str(batch)] = _graphs_beside_launches(llm, batch, prompt, decode)
        except MeasurementError as error:
            decoded[str(batch)] = {"reason": error.message}
    return {**llm.stats()["cuda_graphs"], "decode": decoded}


def _graphs_beside_launches(llm: LLM, batch: int, prompt: int, decode: int) -> dict[str, Any]:
    ids = _random_ids(llm, batch, prompt, seed=batch)

    def replayed(count: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        llm.generate(ids, params, use_tqdm=False)

    def launched(count: int) -> None:
        with without_graphs(llm):
            replayed(count)

    arms = {"launches": launched, "graphs": replayed}
    rates = {name: _rate(run, batch, decode) for name, run in arms.items()}
    return run_paired(rates, "launches", REPEATS).to_dict() | {"unit": "tokens/s"}


@contextmanager
def without_graphs(llm: LLM) -> Iterator[None]:
    """Launch every kernel from Python until the block ends."""
    runner = llm.engine.runner
    graphs, runner.graphs = runner.graphs, None
    try:
        yield
    finally:
        runner.graphs = graphs


def _rate(run: Callable[[int], None], batch: int, decode: int) -> Callable[[], float]:
    def rate() -> float:
        elapsed = _seconds(run, decode + 1) - _seconds(run, 1)
        if elapsed <= 0:
            raise MeasurementError(
                f"{decode} more tokens took {elapsed:.4f} s.", field="decode", value=elapsed
            )
        return batch * decode / elapsed

    return rate


def _seconds(run: Callable[[int], None], count: int) -> float:
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    start = time.perf_counter()
    run(count)
    synchronize()
    return time.perf_counter() - start


def _random_ids(llm: LLM, batch: int, length: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    size = llm.model_config.vocab_size
    return torch.randint(5, size, (batch, length), generator=generator).tolist()
