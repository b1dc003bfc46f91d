"""Hugging Face ``config.json`` -> `ModelConfig`.

Defaults of fields that a file leaves out are those of transformers' own configuration classes,
which also read both spellings of the rope settings: ``rope_parameters`` (possibly per layer type)
and the older ``rope_theta`` / ``rope_scaling``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infopt.errors import CheckpointError, UnsupportedModelError
from infopt.models.config import Activation, LayerKind, ModelConfig, RopeConfig
from infopt.models.hf_families import FAMILIES, HFFamily
from infopt.models.quiet import quiet_transformers

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")

# The second is how compressed-tensors spelt it at first.
_QUANTIZATION_KEYS = ("quantization_config", "compression_config")

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_LAYER_KINDS: dict[str, LayerKind] = {"full_attention": "full", "sliding_attention": "window"}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: If the file is missing or is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path.parent} has no {path.name}.", field=path.name, value=str(path)
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not valid JSON ({error}).", field=path.name, value=str(path)
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object.", field=path.name)
    return value


def hf_config(
    raw: Mapping[str, Any],
    *,
    num_real_tokens: int | None = None,
    generation: Mapping[str, Any] | None = None,
) -> ModelConfig:
    """Translate the content of a ``config.json``.

    Args:
        raw: The JSON object.
        num_real_tokens: Entries of the tokenizer; None if there is none.
        generation: Content of ``generation_config.json``, whose eos ids take precedence.

    Raises:
        UnsupportedModelError: Names the architecture or setting that is not supported.
        CheckpointError: If transformers refuses the values.
    """
    raw = text_config(raw)
    config = _parse(raw)
    family = FAMILIES[config.model_type]
    _refuse_what_is_not_computed(raw, config)
    kinds, window = _layers(config, family)
    rope, rope_window = _ropes(config)
    gemma = config.model_type == "gemma3_text"
    bias = bool(getattr(config, "attention_bias", getattr(config, "qkv_bias", False)))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    scale = config.query_pre_attn_scalar if gemma else head_dim
    return ModelConfig(
        family=config.model_type,
        vocab_size=config.vocab_size,
        num_real_tokens=min(num_real_tokens or config.vocab_size, config.vocab_size),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        max_position_embeddings=config.max_position_embeddings,
        layer_kinds=kinds,
        sliding_window=window,
        attention_scale=scale**-0.5,
        rms_norm_eps=config.rms_norm_eps,
        activation=_activation(config),
        rope=rope,
        rope_window=rope_window,
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=bias if family.output_bias is None else family.output_bias,
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        embedding_scale=config.hidden_size**0.5 if gemma else 1.0,
        attention_softcap=getattr(config, "attn_logit_softcapping", None),
        final_softcap=getattr(config, "final_logit_softcapping", None),
        tie_word_embeddings=config.tie_word_embeddings,
        bos_token_id=config.bos_token_id,
        eos_token_ids=_id_tuple((generation or {}).get("eos_token_id"))
        or _id_tuple(config.eos_token_id),
        moe=None if family.moe is None else family.moe(config),
        **family.values,
    )


def text_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a ``config.json`` that describes the text decoder.

    Raises:
        UnsupportedModelError: Names the architecture and lists the supported ones.
    """
    raw = copy.deepcopy(dict(raw))
    model_type = raw.get("model_type")
    if model_type == "gemma3" and "text_config" in raw:
        outer = {k: v for k, v in raw.items() if k in ("tie_word_embeddings", "eos_token_id")}
        return outer | raw["text_config"] | {"model_type": "gemma3_text"}
    if model_type not in FAMILIES:
        raise UnsupportedModelError(
            f"Architecture {model_type!r} is not supported.",
            field="model_type",
            value=model_type,
            remedy=f"Supported architectures: {', '.join(sorted([*FAMILIES, 'gemma3']))}.",
        )
    return raw


def quantization_settings(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the ``quantization_config`` of a ``config.json``, or None for plain float weights.

    Raises:
        CheckpointError: If it is there and is not a JSON object.
    """
    for part in (raw, raw.get("text_config") or {}):
        for key in _QUANTIZATION_KEYS:
            settings = part.get(key)
            if settings and not isinstance(settings, dict):
                raise CheckpointError(
                    f"{key} in config.json is not a JSON object.", field=key, value=settings
                )
            if settings:
                return settings
    return None


def _parse(raw: Mapping[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING

    # How weights are stored is no part of the architecture, and transformers would look for the
    # package that reads them.
    values = {key: value for key, value in raw.items() if key not in _QUANTIZATION_KEYS}
    try:
        with quiet_transformers():
            return CONFIG_MAPPING[raw["model_type"]].from_dict(copy.deepcopy(values))
    except Exception as error:  # transformers raises many types here; none of them is a bug of ours
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
        raise CheckpointError(
            f"config.json describes no valid {raw['model_type']} model: {reason}",
            field="config.json",
        ) from error


def _refuse_what_is_not_computed(raw: Mapping[str, Any], config: Any) -> None:
    if raw.get("use_bidirectional_attention"):
        raise UnsupportedModelError(
            "config.json sets use_bidirectional_attention, which is not supported.",
            field="use_bidirectional_attention",
            value=raw["use_bidirectional_attention"],
            remedy="Use a model with causal attention.",
        )
    if getattr(config, "clip_qkv", None) is not None:
        raise UnsupportedModelError(
            f"config.json sets clip_qkv={config.clip_qkv}, which is not supported.",
            field="clip_qkv",
            value=config.clip_qkv,
            remedy="Use a model that does not clip queries, keys and values.",
        )
    if config.num_attention_heads % config.num_key_value_heads:
        raise CheckpointError(
            f"{config.num_attention_heads} query heads cannot share "
            f"{config.num_key_value_heads} key/value heads evenly.",
            field="num_key_value_heads",
            value=config.num_key_value_heads,
        )


def _activation(config: Any) -> Activation:
    field = "hidden_activation" if config.model_type == "gemma3_text" else "hidden_act"
    name = getattr(config, field)
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"Activation {name!r} is not supported.",
            field=field,
            value=name,
            remedy=f"Supported: {', '.join(_ACTIVATIONS)}.",
        )
    return _ACTIVATIONS[name]


def _layers(config: Any, family: HFFamily) -> tuple[tuple[LayerKind, ...], int | None]:
    window = getattr(config, "sliding_window", None)
    if family.layer_types:
        names = config.layer_types
    else:
        window = window if family.one_window else None
        names = ["full_attention" if window is None else "sliding_attention"]
        names = names * config.num_hidden_layers
    for name in names:
        if name not in _LAYER_KINDS:
            raise UnsupportedModelError(
                f"Layer type {name!r} is not supported.",
                field="layer_types",
                value=name,
                remedy=f"Supported: {', '.join(_LAYER_KINDS)}.",
            )
    kinds: tuple[LayerKind, ...] = tuple(_LAYER_KINDS[name] for name in names)
    if len(kinds) != config.num_hidden_layers or ("window" in kinds and window is None):
        raise CheckpointError(
            f"layer_types has {len(kinds)} entries for {config.num_hidden_layers} layers and "
            f"sliding_window is {window}.",
            field="layer_types",
            value=list(names),
        )
    return kinds, window if "window" in kinds else None


def _ropes(config: Any) -> tuple[RopeConfig, RopeConfig | None]:
    parameters = config.rope_parameters
    if not any(name in parameters for name in _LAYER_KINDS):
        return _rope(parameters), None
    full, window = parameters.get("full_attention"), parameters.get("sliding_attention")
    return _rope(full or window), None if window is None else _rope(window)


def _rope(parameters: Mapping[str, Any]) -> RopeConfig:
    kind = parameters.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"Rope type {kind!r} is not supported.",
            field="rope_type",
            value=kind,
            remedy=f"Supported: {', '.join(ROPE_TYPES)}.",
        )
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(
            "Rotating only part of each head is not supported.",
            field="partial_rotary_factor",
            value=parameters["partial_rotary_factor"],
        )
    if kind == "default":
        return RopeConfig(float(parameters["rope_theta"]))
    hidden = ("rope_theta", "type", "partial_rotary_factor")
    scaling = {k: v for k, v in parameters.items() if k not in hidden}
    return RopeConfig(float(parameters["rope_theta"]), scaling)


def _id_tuple(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def hf_stored_dtype(folder: Path) -> str:
    """Return the type that ``config.json`` gives for the weights, or ``unknown``.

    Coded weights go by the method that coded them, such as ``gptq``.
    """
    raw = read_json(folder / "config.json")
    settings = quantization_settings(raw)
    if settings is not None and settings.get("quant_method"):
        return str(settings["quant_method"])
    for part in (raw, raw.get("text_config") or {}):
        for key in ("dtype", "torch_dtype"):
            if part.get(key):
                return str(part[key]).removeprefix("torch.")
    return "unknown"
