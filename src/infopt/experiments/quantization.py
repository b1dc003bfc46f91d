"""Stage `quantization`: what each weight format costs in quality and gives in speed and memory.

A slice of this stage is judged against the float model (`quality_reference`), whatever its
candidates are paired with for speed. Slices that only explain run a small model whose weights were
never quantized: there the order of schemes is a property of the schemes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infopt.evals.reference_logits import ReferenceLogits
from infopt.evals.suite import suite_windows
from infopt.experiments.arms import Arm
from infopt.experiments.baseline import single_probe
from infopt.experiments.machine import machine_peaks
from infopt.experiments.probes import quality, step_curve
from infopt.experiments.slice_spec import SliceSpec
from infopt.experiments.slices import Probe, run_slice
from infopt.llm import LLM


def run(
    spec: SliceSpec, results_dir: str | Path, *, num_threads: int | None = None
) -> dict[str, Any]:
    """Run what is missing of the slice and return its manifest."""
    probes: list[Probe] = [Judge(spec, num_threads).probe, quantization_probe]
    if "single" in spec.workloads:
        probes.append(single_probe(spec))
    if spec.measure_steps:
        probes.append(steps_probe)
    return run_slice(spec, results_dir, num_threads=num_threads, probes=probes)


class Judge:
    """The model that quality is judged against: run once, when the first candidate needs it.

    Args:
        spec: The slice.
        num_threads: Compute threads.
    """

    def __init__(self, spec: SliceSpec, num_threads: int | None) -> None:
        """Load nothing yet."""
        self._spec, self._num_threads = spec, num_threads
        self._logits: ReferenceLogits | None = None

    def probe(self, arm: Arm, reference: Arm | None) -> dict[str, Any]:
        """Measure the quality of a candidate."""
        tier = self._spec.quality_tier
        if tier is None:
            return {}
        if self._spec.quality_reference is None:
            return {"quality": quality(arm.llm, tier, reference.llm if reference else None)}
        if self._logits is None:
            config = self._spec.judge_config().replace(num_threads=self._num_threads)
            with LLM(config=config) as llm:
                windows = suite_windows(llm, tier)
                self._logits = ReferenceLogits.compute(llm, windows, use_tqdm=False)
        return {"quality": quality(arm.llm, tier, self._logits)}


def steps_probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
    """Time single steps by size."""
    del reference
    return {"samples": step_curve(arm.llm, machine_peaks(arm.llm))}


def quantization_probe(arm: Arm, reference: Arm | None) -> dict[str, Any]:
    """Return what the scheme recorded: bits, path, calibration cost, errors layer by layer."""
    del reference
    report = arm.llm.stats()["quantization"]
    details: Mapping[str, Any] = report.get("details", {})
    calibration, experts = details.get("calibration") or {}, details.get("experts") or {}
    extra = {
        "quantization_scheme": report["scheme"],
        "quantization_formats": ", ".join(f"{n} {f}" for f, n in sorted(report["formats"].items())),
        "quantization_backend": report["backend"],
        "quantization_path": report["path"],
        "quantization_reason": report["reason"],
        "on_stored_grid": report["on_stored_grid"],
        "weight_bits": report["weight_bits"],
        "calibration_domain": calibration.get("domain"),
        "calibration_tokens": details.get("calibration_tokens", 0),
        "calibration_s": details.get("calibration_s", 0.0),
        "mean_relative_error": details.get("mean_relative_error"),
        "num_fell_back": details.get("num_fell_back", 0),
        "num_uncovered_experts": experts.get("num_uncovered"),
        "fewest_expert_tokens": experts.get("fewest_tokens"),
    }
    return {"extra": extra, "samples": _by_layer(details)}


_OUTSIDE = {"head": -1.0, "embedding": -2.0}
"""Numbers of the parts that are in no layer."""


def _by_layer(details: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return lists by layer, in the order of the model."""
    parts = details.get("sensitivity") or []
    samples = {
        "sensitivity.layer": [_OUTSIDE.get(p["part"], p["layer"]) for p in parts],
        "sensitivity.is_attention": [float(p["part"] == "attention") for p in parts],
        "sensitivity.num_weights": [float(p["num_weights"]) for p in parts],
        "sensitivity.kl": [p["kl"] for p in parts],
    }
    layers = [r for r in details.get("layers") or [] if r["relative_error"] is not None]
    samples["layers.relative_error"] = [r["relative_error"] for r in layers]
    samples["layers.bits"] = [r["bits"] for r in layers]
    return {name: values for name, values in samples.items() if values}
