"""The inputs of a layer's products: who reads each, and what makes it.

An expert's inputs are its own: it reads the tokens that the router sends to it. All experts, the
shared one and the router read the same normed rows, though, so channels of those are scaled for all
of them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infopt.models.config import ModelConfig
from infopt.models.tensor_names import EXPERTS, ROUTER, SHARED_EXPERT, SHARED_GATE

_ATTENTION: Mapping[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
}

INPUTS: Mapping[str, tuple[str, ...]] = {
    **_ATTENTION,
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Inputs of the products of a layer with a dense MLP, and who reads each."""

LINEARS = tuple(name for readers in INPUTS.values() for name in readers)

MLP_INPUT = "mlp_input"
"""What router, experts and shared expert of a layer read: the rows of all tokens."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Inputs whose channels are scaled together, because one thing makes them.

    Attributes:
        inputs: Their kinds.
        maker: A norm, or a linear layer whose rows the input is linear in.
        dense: Readers that are not coded, and have to follow.
    """

    inputs: tuple[str, ...]
    maker: str
    dense: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """The inputs of one layer.

    Attributes:
        readers: Kind of input -> the linear layers that read it, each once.
        scalings: Kind of input (or `MLP_INPUT`) that is observed for it -> scaling.
        experts: Kinds of input that belong to a routed expert.
    """

    readers: Mapping[str, tuple[str, ...]]
    scalings: Mapping[str, Scaling]
    experts: frozenset[str] = frozenset()

    @property
    def linears(self) -> tuple[str, ...]:
        """All linear layers that are coded."""
        return tuple(name for readers in self.readers.values() for name in readers)

    def scaled_readers(self, kind: str) -> list[str]:
        """Return the coded linear layers that a scaling changes."""
        return [name for each in self.scalings[kind].inputs for name in self.readers[each]]


def inputs_of(config: ModelConfig, index: int) -> LayerInputs:
    """Return the inputs of a layer."""
    norm = "pre_feedforward_layernorm" if config.sandwich_norms else "post_attention_layernorm"
    scalings = {"qkv": Scaling(("qkv",), "input_layernorm")}
    # Values are shared by several query heads unless there are as many; then scales differ.
    if config.num_heads == config.num_kv_heads:
        scalings["output"] = Scaling(("output",), "self_attn.v_proj")
    if config.moe is None or not config.moe.is_sparse[index]:
        scalings["gate_up"] = Scaling(("gate_up",), norm)
        scalings["down"] = Scaling(("down",), "mlp.up_proj")
        return LayerInputs(INPUTS, scalings)
    routed = [f"{EXPERTS}.{expert}" for expert in range(config.moe.num_experts)]
    mlps = routed if config.moe.shared_size is None else [*routed, SHARED_EXPERT]
    readers = dict(_ATTENTION)
    for at in mlps:
        readers[gate_up_of(at)] = (f"{at}.gate_proj", f"{at}.up_proj")
        readers[down_of(at)] = (f"{at}.down_proj",)
        scalings[down_of(at)] = Scaling((down_of(at),), f"{at}.up_proj")
    dense = (ROUTER, SHARED_GATE) if config.moe.shared_gate else (ROUTER,)
    scalings[MLP_INPUT] = Scaling(tuple(map(gate_up_of, mlps)), norm, dense)
    experts = frozenset(kind for at in routed for kind in (gate_up_of(at), down_of(at)))
    return LayerInputs(readers, scalings, experts)


def gate_up_of(mlp: str) -> str:
    """Return the kind of input that an expert's first products read."""
    return f"{mlp}.gate_up"


def down_of(mlp: str) -> str:
    """Return the kind of input that an expert's last product reads."""
    return f"{mlp}.down"
