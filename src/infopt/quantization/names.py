"""Names of schemes that code weights, and what each stands for.

* int4-awq-g64, int4-gptq-g64-inorder, int4-rtn-channel, int3-rtn-g64-asym, int4-rtn-g32-a8
* int8, w8a8-dynamic, w8a8-static, w8a8-static-smooth
* fp8 (inputs per token), fp8-static (per tensor), fp8-weight
* mixed-4.5 (bits on average, embedding and head included, more where the model is sensitive)
* int8+experts-int4-gptq-g64: the routed experts of a mixture in another scheme than the rest
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from infopt.models.tensor_names import EXPERTS
from infopt.quantization.coded import FLOAT_INPUT, ActivationFormat, WeightFormat

EXAMPLES = (
    "int8",
    "w8a8-dynamic",
    "w8a8-static",
    "int4-rtn-g64",
    "int4-awq-g64",
    "int4-gptq-g64",
    "int3-rtn-g64",
    "int2-rtn-g64",
    "fp8",
    "mixed-4.5",
    "int8+experts-int4-rtn-g64",
)
"""One of each kind; groups, methods and options can be combined."""

_EXPERTS = "+experts-"

DEFAULT_GROUP = 64
BITS = (2, 3, 4, 8)
INT8 = WeightFormat(8)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a name asks for.

    Attributes:
        name: The name in full.
        weight: Format of the layers' weights.
        head: Format of the head's weights: 8 bits per output below 8 bits, for the head decides
            between tokens directly.
        method: ``rtn``, ``awq`` or ``gptq``.
        activation: What happens to inputs.
        smooth: Move magnitude from inputs to weights first (SmoothQuant).
        act_order: GPTQ rounds columns with large inputs first.
        average_bits: Budget of ``mixed``, which codes the embedding as well; None otherwise.
        experts: What the routed experts of a mixture get; None is what all others get.
    """

    name: str
    weight: WeightFormat
    head: WeightFormat = INT8
    method: str = "rtn"
    activation: ActivationFormat = FLOAT_INPUT
    smooth: bool = False
    act_order: bool = True
    average_bits: float | None = None
    experts: Recipe | None = None

    @property
    def all(self) -> tuple[Recipe, ...]:
        """This one, and that of the experts where it is another."""
        return (self,) if self.experts is None else (self, self.experts)

    def of(self, layer: str) -> Recipe:
        """Return what the linear layer with this name gets."""
        is_expert = self.experts is not None and f"{EXPERTS}." in layer
        return self.experts if is_expert and self.experts is not None else self

    @property
    def needs_calibration(self) -> bool:
        """Whether text has to be run through the model first."""
        return any(
            each.method != "rtn"
            or each.smooth
            or each.activation.kind == "static"
            or each.average_bits is not None
            for each in self.all
        )

    @property
    def head_activation(self) -> ActivationFormat:
        """What happens to the input of the head: never static, for it decides between tokens."""
        if self.activation.kind == "static":
            return replace(self.activation, kind="dynamic")
        return self.activation


def parse(name: str) -> Recipe | None:
    """Return what a name stands for, or None where it is not of this kind."""
    rest, plus, experts = name.partition(_EXPERTS)
    if plus:
        return _with_experts(name, parse(rest), parse(experts))
    for pattern, make in _KINDS:
        match = pattern.fullmatch(name)
        if match:
            return make(match)
    return None


def _with_experts(name: str, rest: Recipe | None, experts: Recipe | None) -> Recipe | None:
    """Join two recipes; a budget of bits is shared out over a whole model, so it is no half."""
    if rest is None or experts is None or experts.experts is not None:
        return None
    has_budget = rest.average_bits is not None or experts.average_bits is not None
    return None if has_budget else replace(rest, name=name, experts=experts)


def _int(match: re.Match[str]) -> Recipe:
    bits, group = int(match["bits"]), match["group"]
    if group is None:
        size = None if bits == 8 else DEFAULT_GROUP
    else:
        size = None if group == "channel" else int(group[1:])
    weight = WeightFormat(bits, size, symmetric=not match["asym"])
    activation = ActivationFormat("dynamic") if match["a8"] else FLOAT_INPUT
    method = match["method"] or "rtn"
    return Recipe(
        match.string,
        weight,
        head=weight if bits == 8 else INT8,
        method=method,
        activation=activation,
        act_order=not match["inorder"],
    )


def _w8a8(match: re.Match[str]) -> Recipe:
    kind = "static" if match["kind"] == "static" else "dynamic"
    return Recipe(
        match.string, INT8, activation=ActivationFormat(kind), smooth=bool(match["smooth"])
    )


def _fp8(match: re.Match[str]) -> Recipe:
    weight = WeightFormat(8, number="float")
    kinds = {None: "dynamic", "static": "static", "weight": "float"}
    activation = ActivationFormat(kinds[match["kind"]], number="float")  # type: ignore[arg-type]
    return Recipe(match.string, weight, head=weight, activation=activation)


def _mixed(match: re.Match[str]) -> Recipe:
    weight = WeightFormat(4, DEFAULT_GROUP)
    return Recipe(match.string, weight, method="gptq", average_bits=float(match["bits"]))


_KINDS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Recipe]], ...] = (
    (
        re.compile(
            r"int(?P<bits>[2348])(-(?P<method>rtn|awq|gptq))?(-(?P<group>g[1-9]\d*|channel))?"
            r"(?P<asym>-asym)?(?P<inorder>-inorder)?(?P<a8>-a8)?"
        ),
        _int,
    ),
    (re.compile(r"w8a8-(?P<kind>dynamic|static)(?P<smooth>-smooth)?"), _w8a8),
    (re.compile(r"fp8(-(?P<kind>static|weight))?"), _fp8),
    (re.compile(r"mixed-(?P<bits>\d+(\.\d+)?)"), _mixed),
)
