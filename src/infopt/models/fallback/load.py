"""Loads a checkpoint folder into transformers' modules: safetensors only, nothing is executed."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, replace
from typing import Any

import torch

from infopt.errors import CheckpointError, UnsupportedModelError
from infopt.models.fallback import attention
from infopt.models.fallback.config import TransformersConfig, read_config
from infopt.models.fallback.route import Route
from infopt.models.fallback.stored_codes import decode_folder
from infopt.models.hf_config import quantization_settings, read_json
from infopt.models.quiet import quiet_transformers
from infopt.models.tokenizer import folder_tokenizer, has_tokenizer

logger = logging.getLogger(__name__)

QUANTIZATION_KEYS = ("quantization_config", "compression_config")
"""How weights are stored; modules get float weights and need not know."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A text decoder of transformers.

    Attributes:
        causal: Decoder and head, ``...ForCausalLM``.
        config: What the engine needs to know.
        ignored: Tensors of the files that the decoder has no use for.
        why_unpaged: Why it cannot run on pages; None: it does.
    """

    causal: Any
    config: TransformersConfig
    ignored: tuple[str, ...]
    why_unpaged: str | None


def parse_config(raw: dict[str, Any]) -> Any:
    """Return transformers' configuration of a ``config.json``.

    Raises:
        CheckpointError: If transformers refuses the values.
    """
    from transformers import CONFIG_MAPPING

    try:
        with quiet_transformers():
            values = {k: v for k, v in raw.items() if k not in QUANTIZATION_KEYS}
            return CONFIG_MAPPING[raw["model_type"]].from_dict(copy.deepcopy(values))
    except Exception as error:  # transformers raises many types here; none of them is a bug of ours
        raise CheckpointError(
            f"config.json describes no valid {raw['model_type']} model: {error}",
            field="config.json",
        ) from error


def why_unpaged(text: Any) -> str | None:
    """Return why a text decoder cannot run on pages, or None.

    Pages hold one entry per token, for all tokens or those of a window, and modules must call the
    attention that they are told to.
    """
    from transformers.cache_utils import (
        DummyLayer,
        DynamicCache,
        DynamicIndexedLayer,
        DynamicLayer,
        DynamicSlidingWindowLayer,
    )

    known = (DynamicLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer, DummyLayer)
    for layer in DynamicCache(config=text).layers:
        if type(layer) not in known:
            return f"its {type(layer).__name__} is not one entry per token"
    if not causal_class(text)._supports_attention_backend:
        return "its modules have an attention of their own"
    return None


def causal_class(text: Any) -> Any:
    """Return transformers' class for decoder and head.

    Raises:
        UnsupportedModelError: If there is none.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModelError(
            f"transformers has no text decoder for {text.model_type!r}.",
            field="model_type",
            value=text.model_type,
        )
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(text)]


def load(route: Route, dtype: torch.dtype, device: torch.device) -> Loaded:
    """Load decoder and head.

    Raises:
        WeightFormatError: If the weights are stored as codes that cannot be decoded.
        CheckpointError: If a tensor is missing or misshapen.
        UnsupportedModelError: If transformers cannot run the family on our attention.
    """
    config = parse_config(route.raw)
    text = config.get_text_config(decoder=True)
    _refuse_what_is_no_decoder(text)
    attention.register()
    unpaged = why_unpaged(text)
    implementation = attention.NAME if unpaged is None else None
    model, ignored = _from_pretrained(route, config, dtype, implementation)
    causal = _text_decoder(model, text).to(device).eval().requires_grad_(False)
    generation = route.folder / "generation_config.json"
    tokens = folder_tokenizer(route.folder).vocab_size if has_tokenizer(route.folder) else None
    described = read_config(text, read_json(generation) if generation.exists() else None, tokens)
    return Loaded(causal, count_weights(causal, described), ignored, unpaged)


def count_weights(causal: torch.nn.Module, config: TransformersConfig) -> TransformersConfig:
    """Return a configuration with the numbers of weights filled in."""
    sizes = {name: weight.numel() for name, weight in causal.named_parameters()}
    routed = sum(size for name, size in sizes.items() if ".experts." in name)
    idle = 1 - config.top_k / config.num_experts if config.num_experts else 0.0
    total = sum(sizes.values())
    return replace(config, num_parameters=total, num_active_parameters=total - round(routed * idle))


def _refuse_what_is_no_decoder(text: Any) -> None:
    """Tokens must depend on earlier ones alone."""
    bidirectional = getattr(text, "use_bidirectional_attention", None)
    for field, value in (
        ("is_encoder_decoder", bool(getattr(text, "is_encoder_decoder", False))),
        ("use_bidirectional_attention", bidirectional in (True, "all")),
        ("is_causal", getattr(text, "is_causal", True) is False),
    ):
        if value:
            raise UnsupportedModelError(
                f"config.json of this {text.model_type} model sets {field}, and a token would "
                "depend on later ones.",
                field=field,
                value=getattr(text, field),
                remedy="Use a model with causal attention.",
            )


def _from_pretrained(
    route: Route, config: Any, dtype: torch.dtype, implementation: str | None
) -> tuple[Any, tuple[str, ...]]:
    """Return the model and the tensors of the files that it ignores."""
    settings = quantization_settings(route.raw)
    source: dict[str, Any] = {"pretrained_model_name_or_path": route.folder}
    if settings is not None:
        weights = decode_folder(route.folder, settings, dtype)
        logger.warning(
            "%s stores %s codes: they are decoded, and take the memory of float weights",
            route.folder.name,
            settings["quant_method"],
        )
        source = {"pretrained_model_name_or_path": None, "state_dict": weights}
    try:
        with quiet_transformers():
            model, info = _model_class(config).from_pretrained(
                **source,
                config=config,
                dtype=dtype,
                attn_implementation=implementation,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except (OSError, KeyError, ImportError, RuntimeError) as error:
        raise CheckpointError(
            f"transformers cannot load {route.folder.name}: {error}", field="model"
        ) from error
    except ValueError as error:
        raise UnsupportedModelError(
            f"transformers cannot run {config.model_type} on the engine's pages: {error}",
            field="model_type",
            value=config.model_type,
        ) from error
    _check_complete(route, info)
    ignored = tuple(sorted(info["unexpected_keys"]))
    if ignored:
        logger.warning(
            "%d tensors of %s are not used, %s first", len(ignored), route.folder.name, ignored[0]
        )
    return model, ignored


def _model_class(config: Any) -> Any:
    """Return transformers' class for a whole checkpoint, towers for images included."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING):
        if type(config) in mapping:
            return mapping[type(config)]
    raise UnsupportedModelError(
        f"transformers has no text decoder for {config.model_type!r}.",
        field="model_type",
        value=config.model_type,
    )


def _check_complete(route: Route, info: dict[str, Any]) -> None:
    """A tensor that transformers would fill with random numbers is an error."""
    for kind in ("missing_keys", "mismatched_keys", "error_msgs"):
        names = sorted(str(name) for name in info.get(kind) or ())
        if names:
            raise CheckpointError(
                f"{route.folder.name}: {kind.replace('_', ' ')}: {', '.join(names[:3])}"
                f"{' ...' if len(names) > 3 else ''}.",
                field=names[0],
                value=len(names),
                remedy="Fetch the checkpoint again, or the revision that this config.json is of.",
            )


def _text_decoder(model: Any, text: Any) -> Any:
    """Return decoder and head of text, without towers for anything else."""
    inner = getattr(getattr(model, "model", None), "language_model", None)
    if inner is None:
        return model
    text._attn_implementation = inner.config._attn_implementation
    with torch.device("meta"):
        causal = causal_class(text)(text)
    setattr(causal, decoder_name(causal), inner)
    causal.lm_head = model.lm_head
    return causal


def decoder_name(causal: Any) -> str:
    """Return the attribute of a ``...ForCausalLM`` that holds the decoder.

    Raises:
        UnsupportedModelError: If it is not a decoder with a head on it.
    """
    decoder = causal.get_decoder()
    names = [
        name for name, module in causal.named_children() if module is decoder or name == "model"
    ]
    if len(names) != 1:
        raise UnsupportedModelError(
            f"{type(causal).__name__} is not a decoder with a head on it.",
            field="model_type",
            value=causal.config.model_type,
            remedy="Run this family with transformers itself.",
        )
    return names[0]
