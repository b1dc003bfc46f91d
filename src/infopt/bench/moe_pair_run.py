"""Measures mixtures of experts beside dense models that are larger than any cache.

    python -m infopt.bench.moe_pair_run --out build/moe-pair.json

A step of a small model finds its weights in the processor's caches, and then nothing depends on how
many of them it reads. The models here have random weights of 256 MB and more: a dense one, mixtures
that use as many weights per token, and a dense one with as many weights as the mixtures have in
all. Values change no time. Untrained routers choose nearly evenly; where sequences choose alike,
fewer experts are read than the formula says. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from infopt.bench.moe_pair import compare_decoding, grouped_gain, predicted_ratio
from infopt.bench.random_checkpoint import RandomShape, write_random_checkpoint
from infopt.bench.workload_types import WorkloadRequest
from infopt.hardware import fingerprint
from infopt.llm import LLM
from infopt.models.config import ModelConfig
from infopt.results import write_json

REFERENCE = "dense"
SHAPES: Mapping[str, RandomShape] = {
    REFERENCE: RandomShape(intermediate_size=4096),
    "moe-8": RandomShape(intermediate_size=2048, num_experts=8, top_k=2),
    "moe-32": RandomShape(intermediate_size=512, num_experts=32, top_k=8),
    "dense-large": RandomShape(intermediate_size=16384),
}
"""The mixtures have the active weights of ``dense`` and all the weights of ``dense-large``."""

BATCHES = (1, 2, 4, 8, 16, 32, 64)


def token_requests(
    num_ids: int, batch: int, prompt_tokens: int, output_tokens: int
) -> list[WorkloadRequest]:
    """Return requests of random token ids, each with a prompt of its own.

    Args:
        num_ids: Ids to draw from.
        batch: Requests.
        prompt_tokens: Tokens of each prompt.
        output_tokens: Tokens of each answer.
    """
    ids = torch.randint(
        num_ids, (batch, prompt_tokens), generator=torch.Generator().manual_seed(batch)
    ).tolist()
    return [WorkloadRequest(f"r{i}", 0.0, prompt, output_tokens) for i, prompt in enumerate(ids)]


def measure(
    folders: Mapping[str, Path], batches: Sequence[int], repeats: int, **options: Any
) -> dict[str, Any]:
    """Measure every model beside the reference, and its experts beside a loop.

    Args:
        folders: Checkpoints by name, the reference among them.
        batches: Sequences at once.
        repeats: Pairs.
        options: Of the engines.
    """
    results: dict[str, Any] = {}
    with LLM(str(folders[REFERENCE]), **options) as reference:
        for name in [name for name in folders if name != REFERENCE]:
            with LLM(str(folders[name]), **options) as llm:
                points = [_point(reference, llm, batch, repeats) for batch in batches]
                experts = getattr(llm.model_config, "moe", None)
                gain = asdict(grouped_gain(llm, 32, repeats)) if experts else None
                results[name] = {"decode": points, "grouped_over_loop": gain}
            gc.collect()
            print(name, json.dumps(results[name]), flush=True)
    return results


def _point(reference: LLM, llm: LLM, batch: int, repeats: int) -> dict[str, Any]:
    own, base = llm.model_config, reference.model_config
    assert isinstance(own, ModelConfig)
    assert isinstance(base, ModelConfig)
    requests = token_requests(base.num_real_tokens, batch, 17, 8)
    point = compare_decoding(reference, llm, requests, repeats)
    return asdict(point) | {"predicted": predicted_ratio(own, base, batch)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--quantization", default="none")
    options = parser.parse_args(arguments)
    names = dict.fromkeys((REFERENCE, *options.models))
    with tempfile.TemporaryDirectory() as folder:
        folders = {n: write_random_checkpoint(Path(folder, n), SHAPES[n]) for n in names}
        results = measure(
            folders,
            options.batches,
            options.repeats,
            skip_tokenizer_init=True,
            quantization=options.quantization,
            max_num_seqs=max(options.batches),
            max_num_batched_tokens=2048,
            max_model_len=64,
            kv_cache_memory_gib=0.25,
        )
    report = {
        "shapes": {name: asdict(SHAPES[name]) for name in names},
        "quantization": options.quantization,
        "hardware": fingerprint(),
        "results": results,
    }
    if options.out is not None:
        write_json(options.out, report)


if __name__ == "__main__":
    main()
