"""The ``quantization_config`` of compressed-tensors: to formats of layers, and from them.

The package's own classes read and write it and decide which layer a target means; this module
translates between them and `WeightFormat`, and refuses what has no such form.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from infopt.errors import CheckpointError, UnsupportedModelError, WeightFormatError
from infopt.quantization.coded import ActivationFormat, CodedWeight, NumberType, WeightFormat
from infopt.quantization.layer_parts import Settings, needs_compressed_tensors

if TYPE_CHECKING:
    from compressed_tensors.config import CompressionFormat
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
    )

METHOD = "compressed-tensors"
PACKED = "pack-quantized"
PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
MIXED = "mixed-precision"

_USED = frozenset({"quant_method", "config_groups", "format", "ignore", "kv_cache_scheme"})
_USED |= {"sparsity_config", "transform_config", "moe_sparsity_config"}
_HARMLESS = frozenset({"quantization_status", "global_compression_ratio", "version"})
_HARMLESS |= {"run_compressed", "dequantize", "use_optimized_inference"}
_NOT_COMPUTED = ("kv_cache_scheme", "sparsity_config", "transform_config", "moe_sparsity_config")


@dataclass(frozen=True, slots=True)
class LayerSettings:
    """How the file holds one layer.

    Attributes:
        weight: Format of the codes.
        activation: What happens to the input; the scale of a static one is in the file.
        is_packed: Codes lie in 32-bit words, else in int8 or float8 of their own.
        is_per_tensor: All outputs share one scale.
    """

    weight: WeightFormat
    activation: ActivationFormat
    is_packed: bool
    is_per_tensor: bool = False


class CompressedSettings:
    """Tells how each layer of a checkpoint is stored.

    Args:
        values: The ``quantization_config``.

    Raises:
        UnsupportedModelError: Names the setting that is not supported.
        DependencyError: If compressed-tensors is not installed.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Parse and check all groups."""
        settings = Settings(values, METHOD)
        settings.check_keys(_USED, _HARMLESS)
        for key in _NOT_COMPUTED:
            if values.get(key):
                raise settings.refuse(key, "Use a checkpoint with quantized weights alone.")
        self._targets: dict[str, LayerSettings] = {}
        config = _parse(values)
        self._ignore: list[str] = config.ignore or []
        for name, group in config.config_groups.items():
            scheme = cast("QuantizationScheme", group)  # names of presets are resolved by now
            layer = _layer_settings(scheme, config.format, name)
            for target in scheme.targets:
                self._targets[target] = layer
        self._linear = torch.nn.Linear(1, 1, device="meta")  # targets may name the class

    def of(self, layer: str) -> LayerSettings:
        """Return how a layer is stored.

        Raises:
            CheckpointError: If no group targets it.
        """
        with needs_compressed_tensors():
            from compressed_tensors.utils.match import is_match, match_targets

        is_ignored = is_match(layer, self._linear, self._ignore)
        targets = match_targets(layer, self._linear, self._targets)
        if is_ignored or not targets:
            why = "ignores" if is_ignored else "has no group for"
            raise CheckpointError(
                f"The file holds {layer} quantized, and its quantization_config {why} it.",
                field=layer,
                remedy="The quantization_config may be of another file.",
            )
        return self._targets[targets[0]]


def _parse(values: Mapping[str, Any]) -> QuantizationConfig:
    with needs_compressed_tensors():
        from compressed_tensors.quantization import QuantizationConfig

    values = copy.deepcopy(dict(values))
    for group in (values.get("config_groups") or {}).values():
        weights = group.get("weights") if isinstance(group, dict) else None
        # How columns were ordered: newer versions of the package refuse the word, and the file
        # itself says which group an input belongs to (weight_g_idx).
        if isinstance(weights, dict):
            weights.pop("actorder", None)
    try:
        return QuantizationConfig.model_validate(values)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UnsupportedModelError(
            f"compressed-tensors refuses this quantization_config: {error}",
            field="quantization_config",
        ) from error


def _layer_settings(scheme: Any, model_format: str, group: str) -> LayerSettings:
    weights = scheme.weights
    if weights is None or scheme.output_activations is not None:
        what = "weights=null" if weights is None else "output_activations"
        raise _refusal(group, what, None)
    storage = scheme.format or model_format
    if storage == MIXED:
        storage = storage_of(scheme)
    if storage != PACKED and storage not in PLAIN:
        raise _refusal(group, "format", storage)
    return LayerSettings(
        _weight_format(weights, group),
        _activation_format(scheme.input_activations, group),
        is_packed=storage == PACKED,
        is_per_tensor=weights.strategy == "tensor",
    )


def _weight_format(args: QuantizationArgs, group: str) -> WeightFormat:
    number = _number(args)
    is_float = number == "float"
    bits = (8,) if is_float else range(2, 9)
    strategies = ("channel", "tensor") if is_float else ("channel", "tensor", "group")
    if args.num_bits not in bits:
        raise _refusal(group, f"num_bits of {number} weights", args.num_bits)
    if args.strategy not in strategies:
        raise _refusal(group, f"strategy of {number} weights", str(args.strategy))
    if args.dynamic or (is_float and not args.symmetric):
        what = "dynamic weights" if args.dynamic else "symmetric of float weights"
        raise _refusal(group, what, bool(args.dynamic))
    size = args.group_size if args.strategy == "group" else None
    return WeightFormat(args.num_bits, size, args.symmetric, number)


def _number(args: QuantizationArgs) -> NumberType:
    # The package gives an enumeration where a file leaves the type out, else the file's own word.
    return "float" if args.type == "float" else "int"


def _activation_format(args: QuantizationArgs | None, group: str) -> ActivationFormat:
    if args is None:
        return ActivationFormat()
    if args.num_bits != 8 or not args.symmetric:
        what = "num_bits" if args.num_bits != 8 else "symmetric"
        raise _refusal(group, f"{what} of input_activations", getattr(args, what))
    if args.strategy != ("token" if args.dynamic else "tensor"):
        raise _refusal(group, "strategy of input_activations", str(args.strategy))
    return ActivationFormat("dynamic" if args.dynamic else "static", 8, _number(args))


def _refusal(group: str, what: str, value: object) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"quantization_config sets {what} to {value!r} in {group}, which is not supported.",
        field=f"config_groups.{group}",
        value=value,
        remedy="Supported: int weights of 2 to 8 bits per channel, group or tensor, float8 weights "
        "per channel or tensor; inputs in float, or of 8 bits, dynamic per token or static per "
        "tensor.",
    )


def layer_scheme(layer: str, coded: CodedWeight) -> dict[str, Any]:
    """Return the scheme of a layer as plain data, without targets.

    Raises:
        WeightFormatError: Names what compressed-tensors has no form for.
    """
    with needs_compressed_tensors():
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    fmt, activation = coded.format, coded.activation
    if coded.group_index is not None:
        raise _no_form(layer, "inputs that are not in order of their groups (act-order)")
    if activation.kind != "float" and (activation.bits != 8 or activation.number != fmt.number):
        raise _no_form(layer, f"{activation.number}{activation.bits} inputs of {fmt.describe()}")
    inputs = {
        "float": None,
        "dynamic": {"num_bits": 8, "type": fmt.number, "strategy": "token", "dynamic": True},
        "static": {"num_bits": 8, "type": fmt.number, "strategy": "tensor"},
    }[activation.kind]
    weights = {
        "num_bits": fmt.bits,
        "type": fmt.number,
        "symmetric": fmt.symmetric,
        "strategy": "channel" if fmt.group_size is None else "group",
        "group_size": fmt.group_size,
    }
    scheme = QuantizationScheme(
        targets=[],
        weights=QuantizationArgs.model_validate(weights),
        input_activations=inputs and QuantizationArgs.model_validate(inputs),
    )
    scheme.format = storage_of(scheme)
    return scheme.model_dump(mode="json")


def _no_form(layer: str, what: str) -> WeightFormatError:
    return WeightFormatError(
        f"compressed-tensors has no form for {what}, as {layer} has.",
        field=layer,
        value=what,
        remedy="Quantize with a scheme that can be stored, or run the scheme without storing it.",
    )


def storage_of(scheme: QuantizationScheme) -> CompressionFormat:
    """Return the storage format that compressed-tensors uses for a scheme."""
    with needs_compressed_tensors():
        from compressed_tensors.compressors.format import infer_module_format

    return infer_module_format(torch.nn.Linear, scheme)


def quantization_config(
    schemes: Mapping[str, Mapping[str, Any]], linear_layers: list[str]
) -> dict[str, Any]:
    """Return the ``quantization_config`` for the layers of a model.

    A scheme that all layers of the blocks share targets the class. Several schemes target the names
    of their layers, since other servers look for a class before they look for the parts of the
    layers that they fuse.

    Args:
        schemes: Layer -> its scheme (see `layer_scheme`).
        linear_layers: All linear layers of the model.
    """
    groups: list[tuple[Mapping[str, Any], list[str]]] = []
    for layer, scheme in schemes.items():
        for known, layers in groups:
            if known == scheme:
                layers.append(layer)
                break
        else:
            groups.append((scheme, [layer]))
    formats = {scheme["format"] for scheme, _ in groups}
    groups.sort(key=lambda group: any(map(_is_in_block, group[1])))  # names before the class
    num_in_blocks = sum(map(_is_in_block, schemes))
    return _config(
        {
            f"group_{index}": {**scheme, "targets": _targets(layers, num_in_blocks)}
            for index, (scheme, layers) in enumerate(groups)
        },
        formats.pop() if len(formats) == 1 else MIXED,
        [layer for layer in linear_layers if layer not in schemes],
    )


def _targets(layers: list[str], num_in_blocks: int) -> list[str]:
    num_here = sum(map(_is_in_block, layers))
    if num_here == 0 or num_here < num_in_blocks:
        return layers
    # A head is no plain linear layer everywhere, so its name is given.
    return [*(layer for layer in layers if not _is_in_block(layer)), "Linear"]


def _is_in_block(layer: str) -> bool:
    return layer.startswith("model.layers.")


def _config(groups: dict[str, Any], storage: str, ignore: list[str]) -> dict[str, Any]:
    with needs_compressed_tensors():
        from compressed_tensors import QuantizationConfig, __version__

    values = {"config_groups": groups, "format": storage, "ignore": ignore}
    config = QuantizationConfig.model_validate(values | {"quantization_status": "compressed"})
    return config.model_dump(mode="json") | {"version": __version__}
