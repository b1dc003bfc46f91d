"""The canonical tensor names of a decoder, with the shapes its configuration demands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from infopt.errors import CheckpointError, nearest
from infopt.models.config import ModelConfig, MoeConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
HEAD_LAYER = HEAD.removesuffix(".weight")
EMBEDDING_LAYER = EMBEDDING.removesuffix(".weight")
"""Name under which a coded embedding is reported."""

# Of a mixture of experts, within its layer.
ROUTER = "mlp.gate"
SELECTION_BIAS = "mlp.gate.e_score_correction_bias"
EXPERTS = "mlp.experts"
SHARED_EXPERT = "mlp.shared_expert"
SHARED_GATE = "mlp.shared_expert_gate"


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every tensor that a decoder of this configuration needs.

    Linear weights are ``(out_features, in_features)``, norms and biases are vectors.
    """
    embedding = (config.vocab_size, config.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: embedding, FINAL_NORM: (config.hidden_size,)}
    if not config.tie_word_embeddings:
        shapes[HEAD] = embedding
    common, dense = _layer_shapes(config), _dense_shapes(config)
    sparse = {} if config.moe is None else sparse_shapes(config.moe, config.hidden_size)
    for index in range(config.num_layers):
        is_sparse = config.moe is not None and config.moe.is_sparse[index]
        layer = common | (sparse if is_sparse else dense)
        shapes.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden = config.hidden_size
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config.sandwich_norms:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    shapes: dict[str, tuple[int, ...]] = {f"{norm}.weight": (hidden,) for norm in norms}
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.query_norm_size,)
        shapes["self_attn.k_norm.weight"] = (config.key_norm_size,)
    qkv, out = config.qkv_bias, config.output_bias
    linears = (
        ("self_attn.q_proj", config.query_size, hidden, qkv),
        ("self_attn.k_proj", config.kv_size, hidden, qkv),
        ("self_attn.v_proj", config.kv_size, hidden, qkv),
        ("self_attn.o_proj", hidden, config.query_size, out),
    )
    return shapes | _linear_shapes(linears)


def _dense_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    return _mlp_shapes("mlp", config.hidden_size, config.intermediate_size, config.mlp_bias)


def sparse_shapes(moe: MoeConfig, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return name within the layer -> shape of a mixture of experts, each expert by itself."""
    shapes: dict[str, tuple[int, ...]] = {f"{ROUTER}.weight": (moe.num_experts, hidden)}
    if moe.selection_bias:
        shapes[SELECTION_BIAS] = (moe.num_experts,)
    for expert in range(moe.num_experts):
        shapes |= _mlp_shapes(f"{EXPERTS}.{expert}", hidden, moe.intermediate_size)
    if moe.shared_size is not None:
        shapes |= _mlp_shapes(SHARED_EXPERT, hidden, moe.shared_size)
    if moe.shared_gate:
        shapes[f"{SHARED_GATE}.weight"] = (1, hidden)
    return shapes


def _mlp_shapes(
    at: str, hidden: int, inner: int, has_bias: bool = False
) -> dict[str, tuple[int, ...]]:
    return _linear_shapes(
        (
            (f"{at}.gate_proj", inner, hidden, has_bias),
            (f"{at}.up_proj", inner, hidden, has_bias),
            (f"{at}.down_proj", hidden, inner, has_bias),
        )
    )


def _linear_shapes(linears: Iterable[tuple[str, int, int, bool]]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of ``(name, outputs, inputs, has a bias)``."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, num_out, num_in, has_bias in linears:
        shapes[f"{name}.weight"] = (num_out, num_in)
        if has_bias:
            shapes[f"{name}.bias"] = (num_out,)
    return shapes


def linear_layers(config: ModelConfig) -> list[str]:
    """Return the names of all linear layers, a head that is not tied included."""
    return [
        name.removesuffix(".weight")
        for name, shape in expected_tensors(config).items()
        if len(shape) == 2 and name != EMBEDDING
    ]


def is_norm(name: str) -> bool:
    """Tell whether a canonical name is an RMS norm's weight."""
    return name.endswith("norm.weight")


def check_tensors(found: Mapping[str, tuple[int, ...]], config: ModelConfig, where: str) -> None:
    """Compare the tensors of a file with what the configuration demands.

    Args:
        found: Canonical name -> shape.
        config: The architecture.
        where: File or folder, for the message.

    Raises:
        CheckpointError: Names the first tensor that is missing or has another shape.
    """
    for name, shape in expected_tensors(config).items():
        if name not in found:
            raise CheckpointError(
                f"{where} lacks the tensor {name!r}.",
                field=name,
                remedy="The file is incomplete or its configuration belongs to another model.",
            )
        if tuple(found[name]) != shape:
            raise CheckpointError(
                f"{name!r} in {where} has shape {tuple(found[name])}, its configuration demands "
                f"{shape}.",
                field=name,
                value=tuple(found[name]),
                remedy="The configuration belongs to another model.",
            )


def unknown_tensor(name: str, known: Iterable[str], where: str) -> CheckpointError:
    """Return the error for a tensor that no part of the decoder reads."""
    return CheckpointError(
        f"{where} holds the tensor {name!r}, which this architecture has no use for."
        f"{nearest(name, known)}",
        field=name,
        remedy="Leaving it out could change the model's output; check the configuration.",
    )
