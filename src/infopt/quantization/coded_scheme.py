"""Schemes whose weights are codes: read from a quantized checkpoint, or rounded when loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch

from infopt.errors import ConfigError
from infopt.models.checkpoint import Checkpoint
from infopt.models.linear_source import LinearSource
from infopt.models.tensor_names import HEAD_LAYER
from infopt.ops import OpSet
from infopt.ops.linear import Linear
from infopt.quantization.coded import CodedWeight
from infopt.quantization.linear_report import GRID_TOLERANCE, grid_error
from infopt.quantization.methods import LayerWork, make_method
from infopt.quantization.names import Recipe
from infopt.quantization.products import ProductMaker, concatenate
from infopt.quantization.report import read_report
from infopt.quantization.scheme import SchemeReport, check_experts

logger = logging.getLogger(__name__)

CodesOf = Callable[[str], CodedWeight | None]
"""Codes of a linear layer by canonical name; None where it is not coded."""


class CodedScheme:
    """Makes products of codes.

    Args:
        name: Name for the report.
        codes_of: Where the codes are.
        ops: For layers that are not coded, and where no kernel reads a format.
        device: Where the model runs.
        dtype: Compute type.
    """

    def __init__(
        self, name: str, codes_of: CodesOf, ops: OpSet, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Look for kernels."""
        self._codes_of, self._ops = codes_of, ops
        self._float = str(dtype).removeprefix("torch.")
        self._products = ProductMaker(ops, device, dtype)
        self.report = SchemeReport(name, backend=self._products.backend)
        self._paths: set[str] = set()
        self._num_weights = self._num_bits = 0

    def __call__(self, source: LinearSource) -> Linear:
        """Make a layer."""
        parts = [self._codes_of(_layer_of(source, part)) for part in source.parts]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return self._dense(source, len(found))
        if len({(part.format, part.activation) for part in found}) > 1:
            return self._separate(source, found)
        coded = concatenate(found)
        return self._make(coded, source.bias(), source.name)

    def note_grid(self, error: float) -> None:
        """Take in how far the codes of a layer are from its weights, in steps."""
        was_on_grid = self.report.on_stored_grid is not False
        self.report.on_stored_grid = was_on_grid and error < GRID_TOLERANCE

    def _make(self, coded: CodedWeight, bias: torch.Tensor | None, name: str) -> Linear:
        coded.check(name)
        made = self._products.make(coded, bias)
        report = self.report
        report.formats[coded.format.describe()] += 1
        self._note_path(made.path)
        if made.reason is not None and report.reason == "preferred":
            report.reason = f"dequantized when loaded: {made.reason}"
            logger.info("%s: %s", report.scheme, report.reason)
        self._count(coded.codes.numel(), 8 * coded.num_bytes)
        return made.linear

    def _dense(self, source: LinearSource, num_coded: int) -> Linear:
        assert num_coded == 0, f"{source.name}: some parts are coded and some are not"
        weight = source.weight()
        self.report.formats[self._float] += 1
        self._note_path("float")
        self._count(weight.numel(), 8 * weight.nbytes)
        return self._ops.linear(weight, source.bias())

    def _separate(self, source: LinearSource, parts: list[CodedWeight]) -> Linear:
        bias = source.bias()
        sizes = [part.out_features for part in parts]
        biases = [None] * len(parts) if bias is None else list(bias.split(sizes))
        return SideBySide(
            [self._make(p, b, source.name) for p, b in zip(parts, biases, strict=True)]
        )

    def _note_path(self, path: str) -> None:
        self._paths.add(path)
        if self._paths != {"float"}:
            self.report.path = ", ".join(sorted(self._paths - {"float"}))

    def _count(self, num_weights: int, num_bits: int) -> None:
        self._num_weights += num_weights
        self._num_bits += num_bits
        self.report.weight_bits = self._num_bits / self._num_weights


class SideBySide:
    """Products of one input whose weights have different formats.

    Args:
        parts: In the order of their outputs.
    """

    def __init__(self, parts: list[Linear]) -> None:
        """Keep the products."""
        self._parts = parts
        self.in_features = parts[0].in_features
        self.out_features = sum(part.out_features for part in parts)
        self.num_bytes = sum(part.num_bytes for part in parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return all outputs side by side."""
        return torch.cat([part(x) for part in self._parts], dim=-1)


def codes_made_now(
    recipe: Recipe, checkpoint: Checkpoint, ops: OpSet, device: torch.device, dtype: torch.dtype
) -> CodedScheme:
    """Return a scheme that rounds each weight when it is asked for.

    Raises:
        ConfigError: If the scheme has to be calibrated.
    """
    if recipe.needs_calibration:
        raise ConfigError(
            f"quantization={recipe.name!r} has to be calibrated first.",
            field="quantization",
            value=recipe.name,
            remedy="`infopt.quantization.prepare_checkpoint` does so.",
        )
    check_experts(recipe, checkpoint.config)
    methods = {each: make_method(each) for each in recipe.all}

    def codes_of(name: str) -> CodedWeight:
        is_head = name == HEAD_LAYER
        chosen = recipe.of(name)
        fmt = recipe.head if is_head else chosen.weight
        weight = checkpoint.get(f"{_stored_name(checkpoint, name)}.weight")
        coded = methods[chosen].quantize(LayerWork(name, weight, fmt)).coded
        if not is_head:
            scheme.note_grid(grid_error(weight - coded.dequantize(), coded))
        activation = recipe.head_activation if is_head else chosen.activation
        return replace(coded, activation=activation)

    scheme = CodedScheme(recipe.name, codes_of, ops, device, dtype)
    return scheme


def stored_codes(
    name: str, checkpoint: Checkpoint, ops: OpSet, device: torch.device, dtype: torch.dtype
) -> CodedScheme:
    """Return the scheme of a checkpoint that is quantized already; ``none`` takes it as it is.

    Raises:
        ConfigError: If another scheme is asked for than the checkpoint's.
    """
    report = read_report(checkpoint.path) or {}
    stored = report.get("scheme", "stored")
    if name not in ("none", stored):
        raise ConfigError(
            f"{checkpoint.path.name} is quantized already ({stored}), and quantization={name!r} "
            "is asked for.",
            field="quantization",
            value=name,
            remedy="Use 'none' to run it as it is, or the checkpoint with float weights.",
        )
    codes_of = cast(CodesOf, checkpoint.coded)  # what its reader makes
    scheme = CodedScheme(stored, codes_of, ops, device, dtype)
    scheme.report.on_stored_grid = report.get("on_stored_grid")
    hidden = ("scheme", "formats", "weight_bits", "on_stored_grid", "num_bytes")
    scheme.report.details = {k: v for k, v in report.items() if k not in hidden}
    return scheme


def _stored_name(checkpoint: Checkpoint, name: str) -> str:
    is_tied_head = name == HEAD_LAYER and checkpoint.config.tie_word_embeddings
    return "model.embed_tokens" if is_tied_head else name


def _layer_of(source: LinearSource, part: str) -> str:
    """Return the canonical name of a part; a tied head is asked for as the embedding it shares."""
    return HEAD_LAYER if source.name == HEAD_LAYER else part
