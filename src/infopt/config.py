"""`EngineConfig`: the one description of how a model is run.

LLM, server, pipeline and ``recommendation.yaml`` all read and write this class. It is frozen and
holds only what a user asks for; what the engine derives from it (pool size, chosen kernels) is
reported by ``LLM.stats()`` and never written back.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from infopt.errors import ConfigError, check_known_keys, nearest

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
Scheduling = Literal["continuous", "static", "static_padded"]
Preemption = Literal["recompute", "swap"]
CudaGraphs = Literal["auto", "off"]
KVCacheDtype = Literal["auto", "int8", "int4", "int2", "fp8_e4m3", "fp8_e5m2"]
BackendName = Literal["auto", "reference", "cpu", "triton", "flash-attn"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a model is run.

    Attributes:
        model: Registry slug, folder with a checkpoint, or GGUF file.
        dtype: Compute type. ``auto`` is bfloat16 where the hardware multiplies it, else float32.
            Bit-level batch invariance is promised for float32 only.
        device: ``auto`` takes CUDA when a GPU is visible, else the CPU.
        quantization: Weight scheme; ``none`` runs the weights as they are stored.
        calibration: Text for schemes that are calibrated: ``domain`` (mixed, docs, code, random),
            ``num_sequences``, ``length``, ``seed``; default is 16 mixed sequences of 256 tokens.
        speculative: Guess tokens and verify several at a time, without loss: ``method`` (ngram,
            suffix, draft_model, draft_head, early_exit, or auto, which guesses only where that
            pays) and its options, ``num_speculative_tokens`` among them.
        kv_eviction: Keep a part of the keys and values: ``method`` (streaming, knorm, tova, h2o,
            snapkv, expected_attention, pyramid, random), ``budget`` (a share of the prompt) or
            ``budget_tokens``, and options of the method. Requests may choose otherwise. Needs
            ``preemption="swap"``.
        backend: Which kernels to prefer; a slower path is announced and recorded.
        cuda_graphs: ``auto`` replays decode steps from captured graphs on a CUDA device; ``off``
            launches every kernel from Python.
        scheduling: ``continuous`` admits requests every step; ``static`` waits until a batch has
            finished before it admits the next; ``static_padded`` also pads prompts and keeps
            finished rows computing, as classic fixed batches do.
        max_num_seqs: Most sequences in one step.
        max_num_batched_tokens: Most tokens in one step (prefill chunks and decodes together).
        max_model_len: Longest prompt + output; default is the model's own limit.
        block_size: Tokens per KV page.
        num_kv_pages: Pages in the pool; default is what ``kv_cache_memory_gib`` holds. With
            quantized pages both forms share the memory of so many full-precision ones.
        kv_cache_memory_gib: Memory for the pool when ``num_kv_pages`` is not given.
        kv_cache_dtype: How old keys and values are kept: ``auto`` in the compute type, else
            quantized (keys per channel, values per token).
        kv_group_size: Tokens that share the scales of quantized keys.
        kv_residual: Newest tokens that stay in the compute type.
        enable_prefix_caching: Share pages between requests with equal prefixes.
        preemption: What happens to a request that loses its pages: computed again or swapped out.
        swap_memory_gib: Host memory for swapped pages.
        max_num_waiting: Longest waiting queue; more is a ``QueueFullError``.
        num_threads: Compute threads on the CPU; default is the cores this process may use.
        seed: Seed of the seeds given to requests that bring none.
        expert_stats: Count which experts of a mixture the tokens go to; a dense model has none to
            count.
        skip_tokenizer_init: Work on token ids alone.
        check_integrity: Prove the page pool's invariants after each step (slow; for tests).
    """

    model: str
    dtype: Dtype = "auto"
    device: Device = "auto"
    quantization: str = "none"
    calibration: Mapping[str, Any] | None = None
    speculative: Mapping[str, Any] | None = None
    kv_eviction: Mapping[str, Any] | None = None
    backend: BackendName = "auto"
    cuda_graphs: CudaGraphs = "auto"
    scheduling: Scheduling = "continuous"
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None
    block_size: int = 16
    num_kv_pages: int | None = None
    kv_cache_memory_gib: float = 1.0
    kv_cache_dtype: KVCacheDtype = "auto"
    kv_group_size: int = 64
    kv_residual: int = 128
    enable_prefix_caching: bool = True
    preemption: Preemption = "recompute"
    swap_memory_gib: float = 1.0
    max_num_waiting: int | None = None
    num_threads: int | None = None
    seed: int = 0
    expert_stats: bool = False
    skip_tokenizer_init: bool = False
    check_integrity: bool = False

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: Names the field, its value and the accepted ones.
        """
        for name, remedy in _TEXTS.items():
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigError(
                    f"{name} must be a non-empty string, got {value!r}.",
                    field=name,
                    value=value,
                    remedy=remedy,
                )
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), get_args(choices))
        for name in _COUNTS:
            _check_int(name, getattr(self, name), minimum=1)
        for name in ("max_model_len", "num_kv_pages", "num_threads", "max_num_waiting"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), minimum=1)
        for name in ("kv_cache_memory_gib", "swap_memory_gib"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < 0:
                raise ConfigError(
                    f"{name} must be a finite number >= 0, got {value!r}.", field=name, value=value
                )
        _check_int("seed", self.seed, minimum=0)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(
                    f"{name} must be true or false, got {getattr(self, name)!r}.",
                    field=name,
                    value=getattr(self, name),
                )
        for name in _MAPPINGS:
            _check_mapping(name, getattr(self, name))
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is smaller than "
                f"max_num_seqs={self.max_num_seqs}: a step could not decode every sequence.",
                field="max_num_batched_tokens",
                value=self.max_num_batched_tokens,
                remedy=f"Raise it to at least {self.max_num_seqs} or lower max_num_seqs.",
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineConfig:
        """Build a config from plain data.

        Raises:
            ConfigError: For an unknown key (with the nearest valid one) or a bad value.
        """
        check_known_keys(values, cls.field_names(), "EngineConfig")
        if "model" not in values:
            raise ConfigError("EngineConfig needs a model.", field="model", remedy="Add model: ...")
        return cls(**values)

    @classmethod
    def field_names(cls) -> list[str]:
        """Return the names of all options, in order."""
        return [f.name for f in dataclasses.fields(cls)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that :meth:`from_dict` reads back to an equal config."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> EngineConfig:
        """Return a copy with some options changed (unknown names are errors)."""
        check_known_keys(changes, self.field_names(), "EngineConfig")
        return dataclasses.replace(self, **changes)


_TEXTS = {
    "model": "Give a registry slug, a checkpoint folder or a GGUF file.",
    "quantization": "Use 'none' for the float weights.",
}

_COUNTS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "kv_group_size",
    "kv_residual",
)

_SWITCHES = ("enable_prefix_caching", "expert_stats", "skip_tokenizer_init", "check_integrity")

_MAPPINGS = {
    "calibration": "{'domain': 'docs', 'num_sequences': 16}",
    "speculative": "{'method': 'ngram', 'num_speculative_tokens': 5}",
    "kv_eviction": "{'method': 'streaming', 'budget_tokens': 512}",
}

_CHOICES: dict[str, Any] = {
    "dtype": Dtype,
    "device": Device,
    "backend": BackendName,
    "cuda_graphs": CudaGraphs,
    "scheduling": Scheduling,
    "preemption": Preemption,
    "kv_cache_dtype": KVCacheDtype,
}


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(
            f"{name}={value!r} is not a choice.{nearest(str(value), choices)}",
            field=name,
            value=value,
            remedy=f"Choose one of: {', '.join(choices)}.",
        )


def _check_int(name: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(
            f"{name} must be a whole number >= {minimum}, got {value!r}.", field=name, value=value
        )


def _check_mapping(name: str, value: object) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(
            f"{name} must be a mapping of options, got {value!r}.",
            field=name,
            value=value,
            remedy=f"Example: {_MAPPINGS[name]}.",
        )
