"""Weight formats: each scheme makes the linear layers of a decoder.

A scheme is a :class:`~infopt.quantization.scheme.Scheme` in the registry :data:`SCHEMES`;
``EngineConfig.quantization`` names it. The engine finds it by name and never imports this package's
contents, so that imports point one way.
"""

from __future__ import annotations

from infopt.quantization.calibration import CalibrationSet
from infopt.quantization.coded_embedding import stored_embedding
from infopt.quantization.prepare import prepare_checkpoint
from infopt.quantization.quantize import quantize_model
from infopt.quantization.report import QuantizationReport
from infopt.quantization.scheme import SCHEMES, Scheme, SchemeReport, make_scheme

__all__ = [
    "SCHEMES",
    "CalibrationSet",
    "QuantizationReport",
    "Scheme",
    "SchemeReport",
    "make_scheme",
    "prepare_checkpoint",
    "quantize_model",
    "stored_embedding",
]
