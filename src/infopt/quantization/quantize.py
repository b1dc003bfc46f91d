"""Quantizes a model into a folder, which the engine, transformers and vLLM load."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from infopt.engine.progress import bar
from infopt.errors import WeightFormatError
from infopt.models.checkpoint import Checkpoint, open_checkpoint
from infopt.models.registry import resolve_model
from infopt.quantization.calibration import CalibrationSet
from infopt.quantization.coded_embedding import store_embedding
from infopt.quantization.export import CheckpointWriter, folder_dtype
from infopt.quantization.layerwise import FormatOf, LayerwiseQuantizer
from infopt.quantization.linear_report import LinearReport, effective_bits
from infopt.quantization.methods import SCALE_DTYPE
from infopt.quantization.names import Recipe, parse
from infopt.quantization.report import QuantizationReport, write_report
from infopt.quantization.scheme import check_experts, check_name, is_coded
from infopt.quantization.sensitivity import Sensitivity, measure_sensitivity, mixed_formats

logger = logging.getLogger(__name__)

_PROBE_TOKENS = 96
Progress = Callable[[Sequence[int], str], Sequence[int]]


def quantize_model(
    model: str,
    scheme: str,
    out: Path,
    *,
    calibration: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> QuantizationReport:
    """Quantize a model into a folder.

    Memory stays at one layer's weights and the hidden states of the calibration text. A run that
    was interrupted goes on where it stopped.

    Args:
        model: Registry slug, checkpoint folder or GGUF file with float weights.
        scheme: Name of a scheme.
        out: Folder to write; must not exist.
        calibration: Options of `CalibrationSet`.
        progress: Show a progress bar.

    Raises:
        ConfigError: An unknown scheme or option; groups that do not divide a layer.
        WeightFormatError: The scheme has no form in the compressed-tensors format, the model is
            quantized already.
    """
    recipe = _recipe(scheme)
    chosen = CalibrationSet.from_dict(calibration)
    with open_checkpoint(resolve_model(model)) as checkpoint:
        bars = show_bars if progress else _silent
        return quantize_checkpoint(checkpoint, recipe, out, chosen, bars)


def quantize_checkpoint(
    checkpoint: Checkpoint,
    recipe: Recipe,
    out: Path,
    calibration: CalibrationSet,
    progress: Progress,
) -> QuantizationReport:
    """Quantize an open checkpoint; see `quantize_model`."""
    check_experts(recipe, checkpoint.config)
    start_s = time.perf_counter()
    if is_coded(checkpoint):
        raise WeightFormatError(
            f"{checkpoint.path.name} is quantized already.",
            field="model",
            value=recipe.name,
            remedy="Start from its float weights.",
        )
    used = calibration if recipe.needs_calibration else None
    ids = None
    if used is not None:
        ids = used.token_ids(checkpoint.config, checkpoint.tokenizer())
    dtype = folder_dtype(checkpoint)
    scale_dtype = SCALE_DTYPE if dtype == torch.float32 else dtype
    job = {"scheme": recipe.name, "calibration": used.to_dict() if used else None}
    writer = CheckpointWriter(out, checkpoint, scheme=job)
    parts, format_of = _formats(checkpoint, recipe, ids, progress)
    quantizer = LayerwiseQuantizer(checkpoint, recipe, ids, format_of, scale_dtype)
    state = QuantizerState(out, job | {"source": checkpoint.identity})
    num_done = state.restore(quantizer) if writer.has_layer(0) else 0
    if num_done:
        logger.info("going on after layer %d of an interrupted run", num_done - 1)
    todo = progress(range(num_done, checkpoint.config.num_layers), f"quantizing to {recipe.name}")
    for index in todo:
        layer = quantizer.layer(index)
        writer.add_layer(index, layer.coded, layer.tensors)
        state.save(quantizer, index + 1, layer.reports)
    outside = quantizer.outside()
    writer.add_layer(None, outside.coded, outside.tensors)
    if outside.embedding is not None:
        store_embedding(writer, outside.embedding)
    writer.finish()
    layers = [*state.reports, *outside.reports]
    state.remove()
    report = QuantizationReport(
        scheme=recipe.name,
        folder=out,
        layers=layers,
        calibration=used,
        calibration_tokens=0 if used is None else used.num_tokens,
        duration_s=time.perf_counter() - start_s,
        weight_bits=effective_bits(layers),
        num_bytes=sum(file.stat().st_size for file in out.glob("*.safetensors")),
        sensitivity=parts,
    )
    write_report(report)
    return report


class QuantizerState:
    """What an interrupted run needs to go on: reports and the calibration text's hidden states.

    Args:
        out: Folder that is being made; the state lies beside it.
        job: Plain data; the state of another job is not taken up.
    """

    def __init__(self, out: Path, job: Mapping[str, Any]) -> None:
        """Name the file."""
        self.reports: list[LinearReport] = []
        self._path = out.with_name(f".{out.name}.state.safetensors")
        self._job = json.dumps(job, sort_keys=True)

    def restore(self, quantizer: LayerwiseQuantizer) -> int:
        """Take up what is there and return the number of layers done."""
        if not self._path.exists():
            return 0
        with safe_open(self._path, framework="pt") as file:
            found = file.metadata() or {}
            if found.get("job") != self._job:
                return 0
            if "hidden" in file.keys():  # noqa: SIM118 (a file is no mapping)
                quantizer.hidden = file.get_tensor("hidden")
        self.reports = [LinearReport(**values) for values in json.loads(found["reports"])]
        return int(found["num_done"])

    def save(
        self, quantizer: LayerwiseQuantizer, num_done: int, reports: Sequence[LinearReport]
    ) -> None:
        """Write the state after a layer."""
        self.reports.extend(reports)
        metadata = {
            "job": self._job,
            "num_done": str(num_done),
            "reports": json.dumps([dataclasses.asdict(report) for report in self.reports]),
        }
        hidden = quantizer.hidden
        tensors = {"none": torch.zeros(1)} if hidden is None else {"hidden": hidden}
        partial = self._path.with_suffix(".tmp")
        save_file(tensors, partial, metadata=metadata)
        partial.replace(self._path)

    def remove(self) -> None:
        """Delete the state of a finished run."""
        self._path.unlink(missing_ok=True)


def _recipe(scheme: str) -> Recipe:
    check_name(scheme)
    recipe = parse(scheme)
    if recipe is None:
        raise WeightFormatError(
            f"{scheme!r} has no form in the compressed-tensors format.",
            field="scheme",
            value=scheme,
            remedy="It is made when a model is loaded: give it as `quantization`.",
        )
    return recipe


def _silent(items: Sequence[int], verb: str) -> Sequence[int]:
    del verb
    return items


def _formats(
    checkpoint: Checkpoint, recipe: Recipe, ids: torch.Tensor | None, progress: Progress
) -> tuple[Sequence[Sensitivity], FormatOf | None]:
    """Return what decides the formats of a mixed scheme, and the formats."""
    if recipe.average_bits is None:
        return (), None
    assert ids is not None
    group = recipe.weight.group_size
    parts = measure_sensitivity(
        checkpoint, ids[:1, :_PROBE_TOKENS], group, lambda rows: progress(rows, "sensitivity")
    )
    return parts, mixed_formats(parts, recipe.average_bits, group)


def show_bars(items: Sequence[int], verb: str) -> Sequence[int]:
    """Show progress over layers."""
    return bar(items, verb, "layer")
