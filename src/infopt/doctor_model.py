"""What a model needs here: its weights, its KV cache per token, and how many sequences fit.

>>> from infopt.doctor_model import examine_model
>>> for check in examine_model("smollm2-135m-instruct-q4_1").checks:
...     print(check.name, check.detail)

Nothing is loaded: sizes follow from the checkpoint's description (`infopt.cache.memory_model`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infopt.cache.fit import COMPRESSIONS, fits, lengths_up_to, page_rules
from infopt.cache.memory_model import KVShape, QuantizedForm
from infopt.config import EngineConfig
from infopt.doctor import Check, Section
from infopt.errors import ConfigError, UnsupportedModelError

if TYPE_CHECKING:
    from infopt.models.config import ModelConfig

_GIB, _MIB, _KIB = 2**30, 2**20, 2**10
_VALUE_BYTES = 2  # bfloat16 and float16
_UNKNOWN_LIMIT = 8192  # where a description does not say how long sequences may be


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What is known of a model without loading it.

    Attributes:
        shape: What a token leaves in its cache.
        num_parameters: Weights; None for an architecture that only its cache is known of.
        limit: Longest sequence in tokens.
        stored_bytes: Files of the checkpoint.
    """

    shape: KVShape
    num_parameters: int | None
    limit: int
    stored_bytes: int


def examine_model(model: str, *, kv_gib: float | None = None) -> Section:
    """Say what fits.

    Args:
        model: Registry slug, checkpoint folder or GGUF file.
        kv_gib: Memory for the pool; default is the engine's.

    Raises:
        InfoptError: There is no such model, or its description holds too little.
        ConfigError: ``kv_gib`` is not positive.
    """
    budget_gib = EngineConfig(model=model).kv_cache_memory_gib if kv_gib is None else kv_gib
    if not budget_gib > 0:
        raise ConfigError(
            f"The memory for keys and values must be above 0 GiB, got {budget_gib!r}.",
            field="kv_gib",
            value=budget_gib,
        )
    size = model_size(model)
    return Section(f"Model {model}", list(_checks(size, round(budget_gib * _GIB))))


def model_size(model: str) -> ModelSize:
    """Read the description of a model."""
    from infopt.models.checkpoint import open_checkpoint
    from infopt.models.registry import resolve_model

    path = Path(model) if _has_description(model) else resolve_model(model).path
    if _has_description(path):
        return _of_folder(path)
    with open_checkpoint(path) as checkpoint:
        return _of_config(checkpoint.config, path)


def _has_description(path: str | Path) -> bool:
    return Path(path, "config.json").is_file()


def _of_folder(folder: Path) -> ModelSize:
    """Return what a ``config.json`` says, also one of an architecture that infopt does not run."""
    from infopt.models.hf_config import hf_config, read_json

    raw = read_json(folder / "config.json")
    try:
        return _of_config(hf_config(raw), folder)
    except UnsupportedModelError:
        text = raw.get("text_config") or raw
        limit = int(text.get("max_position_embeddings") or _UNKNOWN_LIMIT)
        return ModelSize(KVShape.of_hf(raw), None, limit, _stored_bytes(folder))


def _of_config(config: ModelConfig, path: Path) -> ModelSize:
    return ModelSize(
        KVShape.of_model(config),
        config.num_parameters,
        config.max_position_embeddings,
        _stored_bytes(path),
    )


def _stored_bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def _checks(size: ModelSize, budget_bytes: int) -> Iterator[Check]:
    shape = size.shape
    yield Check("weights", "info", _weights(size))
    token_kib = shape.bytes_per_token(_VALUE_BYTES) / _KIB
    detail = f"{token_kib:.4g} KiB per token in 16 bits ({shape.num_layers} layers"
    if shape.window_layers:
        detail += f", {shape.window_layers} of them keep {shape.window} tokens"
    yield Check("keys and values", "info", f"{detail}); the model's limit is {size.limit} tokens")
    lengths = lengths_up_to(size.limit)
    for how in COMPRESSIONS:
        form = QuantizedForm.named(how.dtype)
        rules = page_rules(shape, bytes_per_value=_VALUE_BYTES, quantized=form)
        found = fits(shape, rules, budget_bytes, lengths, how)
        parts = [f"{fit.num_seqs} of {fit.num_tokens} tokens" for fit in found]
        name = f"{budget_bytes / _GIB:g} GiB hold ({how.name})"
        yield Check(name, "info", ", ".join(parts))
    rules = page_rules(shape)
    mean = (rules.block_size - 1) / 2
    yield Check(
        "waste of pages",
        "info",
        f"pages of {rules.block_size} tokens leave {mean:g} slots of a sequence empty on average, "
        f"{mean / lengths[0]:.1%} at {lengths[0]} tokens",
    )


def _weights(size: ModelSize) -> str:
    stored = f"{size.stored_bytes / _MIB:.0f} MiB as stored"
    if size.num_parameters is None:
        return f"{stored}; infopt does not run this architecture"
    held = size.num_parameters * _VALUE_BYTES / _MIB
    return f"{size.num_parameters / 1e6:.1f} million, {held:.0f} MiB in 16 bits, {stored}"
