"""infopt finds, proves and serves the LLM-inference configuration that meets your objective.

>>> from infopt import LLM, SamplingParams
>>> llm = LLM("smollm2-135m-instruct-q4_1")
>>> llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8))

Importing the package does nothing but define names: heavy modules load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infopt import plotting
    from infopt.config import EngineConfig
    from infopt.errors import InfoptError
    from infopt.llm import LLM
    from infopt.outputs import RequestOutput
    from infopt.results import load_results
    from infopt.sampling_params import SamplingParams, StructuredOutputsParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "EngineConfig",
    "InfoptError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
    "load_results",
    "plotting",
]

_LAZY = {
    "LLM": "infopt.llm",
    "EngineConfig": "infopt.config",
    "InfoptError": "infopt.errors",
    "RequestOutput": "infopt.outputs",
    "SamplingParams": "infopt.sampling_params",
    "StructuredOutputsParams": "infopt.sampling_params",
    "load_results": "infopt.results",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that ``import infopt`` stays instant."""
    if name == "plotting":
        return importlib.import_module("infopt.plotting")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'infopt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
