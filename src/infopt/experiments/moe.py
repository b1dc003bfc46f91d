"""Stage `moe`: a dense model against mixtures of experts, and who goes to which expert.

The stage explains and chooses nothing: the model of a run has one architecture. Its slices run
models of their own, trained ones for quality (the tiny family) and random ones that are larger than
the processor's caches for speed. Their options say what is measured beside the load.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infopt.bench.moe_pair import expected_weights, grouped_gain
from infopt.bench.random_checkpoint import write_random_checkpoint
from infopt.experiments.arms import Arm
from infopt.experiments.baseline import single_probe
from infopt.experiments.batch_curve import BatchCurve
from infopt.experiments.expert_load import ExpertLoad
from infopt.experiments.machine import precision_of
from infopt.experiments.measures import (
    BATCH_CURVE,
    EXPERT_LOAD,
    RANDOM_MODELS,
    ROUTING,
    read_shapes,
)
from infopt.experiments.quantization import Judge, quantization_probe
from infopt.experiments.random_model import write_tokenizer
from infopt.experiments.routing import Routing
from infopt.experiments.slice_spec import SliceSpec
from infopt.experiments.slices import Probe, run_slice
from infopt.models.config import ModelConfig

READ_BATCHES = (1, 8, 32)
"""Sequences of the decode steps whose weights are counted, per token."""

GROUPED_ROWS = 32
GROUPED_PAIRS = 8
"""Tokens, and pairs, of the comparison of grouped experts with a loop."""


def run(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Run what is missing of the slice and return its manifest."""
    probes: list[Probe] = [architecture_probe, quantization_probe]
    if spec.quality_tier is not None:
        probes.append(Judge(spec, num_threads).probe)
    if "single" in spec.workloads:
        probes.append(single_probe(spec))
    if spec.options.get(BATCH_CURVE) is not None:
        probes.append(BatchCurve(spec.options[BATCH_CURVE], spec.seeds[0]).probe)
    if spec.options.get(EXPERT_LOAD) is not None:
        probes.append(ExpertLoad(spec.options[EXPERT_LOAD], spec.seeds[0]).probe)
    if spec.options.get(ROUTING) is not None:
        probes.append(Routing(spec.options[ROUTING], spec.seeds[0]).probe)
    if spec.options.get(RANDOM_MODELS) is not None:
        probes.append(grouped_probe)
    with random_models(spec, Path(results_dir)) as own:
        return run_slice(own, results_dir, num_threads=num_threads, probes=probes)


def architecture_probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
    """Return what is stored and what a token reads, as flat figures."""
    del reference
    config = arm.llm.model_config
    if not isinstance(config, ModelConfig):
        return {"extra": {"family": config.family}}
    moe, width = config.moe, precision_of(arm.llm).weight_bytes
    read = {n: expected_weights(config, n) * width / n for n in READ_BATCHES}
    return {
        "extra": {
            **{f"read_bytes_per_token_{n}": num_bytes for n, num_bytes in read.items()},
            "family": config.family,
            "num_parameters": config.num_parameters,
            "num_active_parameters": config.num_active_parameters,
            "num_experts": moe.num_experts if moe else 0,
            "top_k": moe.top_k if moe else 0,
            "num_sparse_layers": moe.num_sparse_layers if moe else 0,
        }
    }


def grouped_probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
    """Return what running all experts together gains over a loop over them."""
    del reference
    config = arm.llm.model_config
    if not isinstance(config, ModelConfig) or config.moe is None:
        return {}
    gain = grouped_gain(arm.llm, GROUPED_ROWS, GROUPED_PAIRS)
    named = {name: getattr(gain, name) for name in ("median", "low", "high", "num_pairs")}
    return {"extra": {"grouped_rows": GROUPED_ROWS} | {f"grouped_{k}": v for k, v in named.items()}}


@contextmanager
def random_models(spec: SliceSpec, results_dir: Path) -> Iterator[SliceSpec]:
    """Write the random models of a slice, and remove them in the end: they are gigabytes.

    Args:
        spec: The slice; one without random models is left as it is.
        results_dir: Folder of all results.

    Yields:
        The slice whose candidates run these models.
    """
    options: Mapping[str, Any] | None = spec.options.get(RANDOM_MODELS)
    if options is None:
        yield spec
        return
    folder = results_dir / "models" / f"random-{spec.name}"
    candidates = {}
    try:
        for slug, shape in read_shapes(options, list(spec.candidates)).items():
            path = write_random_checkpoint(folder / slug, shape)
            write_tokenizer(path)
            candidates[slug] = {**spec.candidates[slug], "model": str(path)}
        yield dataclasses.replace(spec, candidates=candidates)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
