"""Which engines and formats are measured, and the files that they need."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infopt.bench.peers.worker import Worker
from infopt.models.registry import resolve_model


@dataclass(frozen=True, slots=True)
class Arm:
    """One engine in one format.

    Attributes:
        name: As tables show it.
        engine: ``infopt``, ``llama_cpp``, ``transformers`` or ``vllm``.
        weights: Format of the weights.
        activations: Format of what is multiplied with them.
        options: For the worker.
    """

    name: str
    engine: str
    weights: str
    activations: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether infopt runs it."""
        return self.engine == "infopt"


def _infopt(name: str, weights: str, activations: str, quantization: str) -> Arm:
    options = {"dtype": "bfloat16", "quantization": quantization}
    return Arm(f"infopt {name}", "infopt", weights, activations, options)


def _llama(kind: str, activations: str) -> Arm:
    return Arm(f"llama.cpp {kind}", "llama_cpp", kind, activations, {"type": kind})


ARMS = (
    _infopt("q4_1", "Q4_1, as stored", "16-bit", "q4_1"),
    _infopt("q4_1-a8", "Q4_1, as stored", "8-bit", "q4_1-a8"),
    _infopt("int8", "8 bits per channel", "16-bit", "int8"),
    _infopt("int8-g64-a8", "8 bits in 64s", "8-bit", "int8-g64-a8"),
    _infopt("int4-awq-g64-a8", "4 bits in 64s, AWQ", "8-bit", "int4-awq-g64-a8"),
    _infopt("bf16", "bfloat16", "bfloat16", "none"),
    _llama("Q4_1", "8-bit"),
    _llama("Q4_0", "8-bit"),
    _llama("Q8_0", "8-bit"),
    _llama("BF16", "bfloat16"),
    Arm("transformers bf16", "transformers", "bfloat16", "bfloat16"),
    Arm("vLLM bf16", "vllm", "bfloat16", "bfloat16"),
)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a comparison runs.

    Attributes:
        model: Registry slug of a model stored as GGUF.
        folder: Working folder: exported weights, requantized files, logs.
        environments: Folder with one virtual environment per peer, named like its engine; what
            infopt's own environment can run needs none.
        threads: Compute threads of every engine.
    """

    model: str
    folder: Path
    environments: Path
    threads: int

    def python(self, engine: str) -> Path | None:
        """Return the interpreter for an engine, or None if its environment is missing."""
        if engine in ("infopt", "transformers"):
            return Path(sys.executable)
        path = self.environments / engine / "bin" / "python"
        return path if path.exists() else None

    def start(self, arm: Arm) -> Worker:
        """Start the worker of an arm."""
        python = self.python(arm.engine)
        assert python is not None
        options = arm.options | {
            "model": self.model,
            "gguf": str(resolve_model(self.model).path),
            "stored_type": "Q4_1",
            "folder": str(self.folder if arm.engine == "llama_cpp" else self.exported),
            "threads": self.threads,
        }
        log = self.folder / f"{arm.name.replace(' ', '-')}.log"
        return Worker(arm.name, python, f"worker_{arm.engine}.py", options, log)

    @property
    def exported(self) -> Path:
        """Folder with the model as plain bfloat16 safetensors, for engines that read those."""
        return self.folder / "bfloat16"

    def export(self) -> None:
        """Write that folder, once."""
        if (self.exported / "config.json").exists():
            return
        from infopt.bench.claims import transformers_model
        from infopt.models.checkpoint import open_checkpoint

        transformers_model(self.model).save_pretrained(self.exported)
        with open_checkpoint(resolve_model(self.model)) as checkpoint:
            checkpoint.tokenizer().hf.save_pretrained(self.exported)
