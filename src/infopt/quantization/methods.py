"""Methods that choose the codes of a layer.

A new one is a class with ``quantize``, filed with ``@METHODS.register(name)``.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from infopt.errors import ConfigError
from infopt.quantization.balance import Balance, awq_balance, smooth_balance
from infopt.quantization.coded import CodedWeight, WeightFormat
from infopt.quantization.gptq import DAMPING, gptq
from infopt.quantization.names import Recipe
from infopt.quantization.rtn import clipped, is_no_worse, rtn
from infopt.quantization.statistics import InputStatistics
from infopt.registry import Registry

SCALE_DTYPE = torch.float16
"""Type of scales where nothing else is asked for: what the kernels read."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """A layer to quantize.

    Attributes:
        name: Canonical name.
        weight: float32 ``(out_features, in_features)``.
        format: How to code it.
        statistics: Of its inputs; None without calibration.
    """

    name: str
    weight: torch.Tensor
    format: WeightFormat
    statistics: InputStatistics | None = None


@dataclass(frozen=True, slots=True)
class Quantized:
    """A quantized layer.

    Attributes:
        coded: Its weight.
        fell_back: Method used instead of the one asked for, if another was better.
        damping: GPTQ's, where it was raised.
    """

    coded: CodedWeight
    fell_back: str | None = None
    damping: float | None = None


class Method(abc.ABC):
    """Chooses codes.

    Args:
        recipe: The scheme.
        scale_dtype: Type in which scales are stored; codes are chosen for the rounded scales.
    """

    def __init__(self, recipe: Recipe, scale_dtype: torch.dtype = SCALE_DTYPE) -> None:
        """Keep the options."""
        self.recipe, self.scale_dtype = recipe, scale_dtype

    def nearest(self, work: LayerWork) -> CodedWeight:
        """Round a layer to nearest."""
        return rtn(work.weight, work.format, scale_dtype=self.scale_dtype, layer=work.name)

    @abc.abstractmethod
    def quantize(self, work: LayerWork) -> Quantized:
        """Quantize one layer."""

    def balance(
        self,
        weights: Sequence[torch.Tensor],
        fmt: WeightFormat,
        statistics: InputStatistics,
        layer: str,
    ) -> Balance | None:
        """Return how to scale the channels of an input before its readers are quantized."""
        del fmt, layer
        return smooth_balance(weights, statistics) if self.recipe.smooth else None


METHODS: Registry[type[Method]] = Registry("quantization method")


@METHODS.register("rtn")
class RoundToNearest(Method):
    """Each weight by itself; nothing is calibrated."""

    def quantize(self, work: LayerWork) -> Quantized:
        """Round."""
        return Quantized(self.nearest(work))


@METHODS.register("awq")
class AWQ(Method):
    """Scales channels so that those with large inputs get finer codes, then clips and rounds."""

    def quantize(self, work: LayerWork) -> Quantized:
        """Clip and round; plain rounding where its output error is lower."""
        plain = self.nearest(work)
        if work.statistics is None:
            return Quantized(plain)
        moment = work.statistics.second_moment
        found = clipped(
            work.weight,
            work.format,
            moment.diagonal(),
            scale_dtype=self.scale_dtype,
            layer=work.name,
        )
        if is_no_worse(work.weight, found, plain, moment):
            return Quantized(found)
        return Quantized(plain, "rtn")

    def balance(
        self,
        weights: Sequence[torch.Tensor],
        fmt: WeightFormat,
        statistics: InputStatistics,
        layer: str,
    ) -> Balance | None:
        """Search the exponent."""
        return awq_balance(
            weights,
            statistics,
            lambda w: rtn(w, fmt, scale_dtype=self.scale_dtype, layer=layer).dequantize(),
            layer=layer,
        )


@METHODS.register("gptq")
class GPTQ(Method):
    """Rounds column by column and repairs the error in the columns that follow."""

    def quantize(self, work: LayerWork) -> Quantized:
        """Round and repair."""
        if work.statistics is None:
            return Quantized(self.nearest(work))
        found = gptq(
            work.weight,
            work.format,
            work.statistics,
            act_order=self.recipe.act_order,
            scale_dtype=self.scale_dtype,
            layer=work.name,
        )
        raised = found.damping if found.damping > DAMPING else None
        return Quantized(found.coded, found.fell_back, raised)


def make_method(recipe: Recipe, scale_dtype: torch.dtype = SCALE_DTYPE) -> Method:
    """Return the method of a scheme.

    Raises:
        ConfigError: If it cannot make the format.
    """
    if recipe.method == "gptq" and recipe.weight.number != "int":
        raise ConfigError(
            "GPTQ makes integer codes.", field="quantization", value=recipe.name, remedy="Use rtn."
        )
    return METHODS.get(recipe.method)(recipe, scale_dtype)
