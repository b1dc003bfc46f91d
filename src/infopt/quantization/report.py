"""What quantizing a model did and cost; it lies beside the weights."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infopt.models.tensor_names import EMBEDDING_LAYER, HEAD_LAYER
from infopt.quantization.calibration import CalibrationSet
from infopt.quantization.layerwise import MIN_EXPERT_TOKENS
from infopt.quantization.linear_report import GRID_TOLERANCE, LinearReport
from infopt.quantization.sensitivity import Sensitivity

REPORT_NAME = "infopt_quantization.json"


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """What quantizing a model did and cost.

    Attributes:
        scheme: Name of the scheme.
        folder: Where the result lies.
        layers: One entry per linear layer.
        calibration: The calibration set; None where the scheme needs none.
        calibration_tokens: Tokens run through the model.
        duration_s: Wall time; less where an interrupted run went on.
        weight_bits: Bits per weight of the coded layers, scales included.
        num_bytes: Size of the weight files.
        sensitivity: Of the parts, where bits were chosen by it.
    """

    scheme: str
    folder: Path
    layers: Sequence[LinearReport]
    calibration: CalibrationSet | None
    calibration_tokens: int
    duration_s: float
    weight_bits: float
    num_bytes: int
    sensitivity: Sequence[Sensitivity] = field(default_factory=tuple)

    @property
    def fell_back(self) -> list[str]:
        """Layers that another method coded better."""
        return [layer.name for layer in self.layers if layer.fell_back is not None]

    @property
    def experts(self) -> dict[str, Any] | None:
        """How much text the routed experts saw, for records; None without calibrated experts.

        ``num_uncovered`` of ``num_experts`` saw fewer than ``min_tokens`` tokens. Their weights are
        rounded and their inputs get a step per row: what was asked for would rest on nothing.
        """
        tokens = {
            layer.name.rpartition(".")[0]: layer.tokens
            for layer in self.layers
            if layer.tokens is not None
        }
        if not tokens:
            return None
        uncovered = [name for name, count in tokens.items() if count < MIN_EXPERT_TOKENS]
        return {
            "num_experts": len(tokens),
            "min_tokens": MIN_EXPERT_TOKENS,
            "fewest_tokens": min(tokens.values()),
            "mean_tokens": sum(tokens.values()) / len(tokens),
            "num_uncovered": len(uncovered),
            "uncovered": uncovered,
        }

    @property
    def formats(self) -> dict[str, int]:
        """Number of layers by format."""
        return dict(Counter(layer.format for layer in self.layers))

    def summary(self) -> dict[str, Any]:
        """Return the figures for records, without the layers."""
        errors = [r.relative_error for r in self.layers if r.relative_error is not None]
        return {
            "scheme": self.scheme,
            "formats": self.formats,
            "weight_bits": round(self.weight_bits, 4),
            "calibration": self.calibration.to_dict() if self.calibration else None,
            "calibration_tokens": self.calibration_tokens,
            "calibration_s": round(self.duration_s, 3),
            "mean_relative_error": sum(errors) / len(errors) if errors else None,
            "num_fell_back": len(self.fell_back),
            "experts": self.experts,
            "num_scaled": sum(bool(layer.exponent) for layer in self.layers),
            "on_stored_grid": all(
                layer.grid_error < GRID_TOLERANCE
                for layer in self.layers
                if layer.name not in (HEAD_LAYER, EMBEDDING_LAYER)
            ),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return self.summary() | {
            "num_bytes": self.num_bytes,
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "sensitivity": [dataclasses.asdict(part) for part in self.sensitivity],
        }


def read_report(folder: Path) -> dict[str, Any] | None:
    """Return the report that lies in a folder, if it was quantized here."""
    path = folder / REPORT_NAME
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def write_report(report: QuantizationReport) -> None:
    """Write a report into its folder."""
    text = json.dumps(report.to_dict(), indent=1)
    (report.folder / REPORT_NAME).write_text(text, encoding="utf-8")
