"""The native decoder: one class runs every supported family on the ops seam.

Families differ by values of :class:`~infopt.models.config.ModelConfig`. Linear layers that read the
same input are packed into one product (q, k, v; gate, up). The decoder knows nothing of requests:
it computes a :class:`~infopt.ops.context.ForwardContext` and writes keys and values through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from infopt.models.config import ModelConfig
from infopt.models.rope import rope_table
from infopt.ops import ForwardContext, KVPages, OpSet
from infopt.ops.linear import Linear
from infopt.ops.rms_norm import rms_norm
from infopt.ops.rotary import HeadNorms


class WeightSource(Protocol):
    """Where weights come from; checkpoints implement this."""

    def get(self, name: str, dtype: torch.dtype = ...) -> torch.Tensor:
        """Return the tensor with a canonical name."""
        ...


LinearFactory = Callable[[str, torch.Tensor, torch.Tensor | None], Linear]
"""Makes a layer from its name, weight and bias: quantization schemes plug in here."""


@dataclass(slots=True)
class DecoderLayer:
    """Weights of one layer, ready for the ops. Norm weights are float32."""

    kind: str
    input_norm: torch.Tensor
    qkv: Linear
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    head_norms: HeadNorms | None
    pre_mlp_norm: torch.Tensor | None
    post_mlp_norm: torch.Tensor | None

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The four products of the layer."""
        return (self.qkv, self.output, self.gate_up, self.down)


class Decoder:
    """A decoder-only transformer over paged keys and values.

    Args:
        config: Architecture.
        weights: Source of the tensors.
        ops: Resolved ops.
        device: Where to run.
        dtype: Compute type.
        max_positions: Rows of the rotary tables.
        make_linear: Replaces the dense linear layers (quantization).
        progress: Wraps the sequence of layer indices, to show progress.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        ops: OpSet,
        *,
        device: torch.device,
        dtype: torch.dtype,
        max_positions: int,
        make_linear: LinearFactory | None = None,
        progress: Callable[[Sequence[int]], Sequence[int]] = lambda layers: layers,
    ) -> None:
        """Load all weights."""
        self.config, self.ops, self.device, self.dtype = config, ops, device, dtype
        self._weights = weights
        self._make_linear = make_linear or (lambda _name, weight, bias: ops.linear(weight, bias))
        self.embedding = self._tensor("model.embed_tokens.weight")
        self.final_norm = self._norm("model.norm.weight")
        head_name = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        self.head = self._make_linear("lm_head", self._tensor(head_name), None)
        self.layers = [self._load_layer(i) for i in progress(range(config.num_layers))]
        self._rope = self._rope_tables(max_positions)
        del self._weights

    @torch.inference_mode()
    def forward(self, ctx: ForwardContext, pages: Sequence[tuple[int, KVPages]]) -> torch.Tensor:
        """Compute the logits of ``ctx.logit_rows``.

        Args:
            ctx: The batch.
            pages: Per layer, the index of its KV group and its pages.

        Returns:
            float32 ``(num_logit_rows, vocab_size)``; ids of padding rows are minus infinity.
        """
        hidden = self.forward_hidden(ctx, pages)
        return self.logits(hidden.index_select(0, ctx.logit_rows))

    @torch.inference_mode()
    def forward_hidden(
        self, ctx: ForwardContext, pages: Sequence[tuple[int, KVPages]]
    ) -> torch.Tensor:
        """Return the normed hidden state of every token, ``(num_tokens, hidden_size)``."""
        x = F.embedding(ctx.input_ids, self.embedding)
        if self.config.embedding_scale != 1.0:
            # Gemma rounds the factor to the compute type before it multiplies.
            x = x * torch.tensor(self.config.embedding_scale, dtype=self.dtype, device=x.device)
        rotations = {
            kind: (cos.index_select(0, ctx.positions), sin.index_select(0, ctx.positions))
            for kind, (cos, sin) in self._rope.items()
        }
        residual: torch.Tensor | None = None
        for layer, (group, layer_pages) in zip(self.layers, pages, strict=True):
            x, residual = self._layer(
                layer, x, residual, ctx, group, layer_pages, rotations[layer.kind]
            )
        return self.ops.add_rms_norm(x, residual, self.final_norm, self.config.rms_norm_eps)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the head to normed hidden states ``(num_rows, hidden_size)``."""
        config = self.config
        logits = self.head(hidden).float()
        if config.final_softcap is not None:
            logits = torch.tanh(logits / config.final_softcap) * config.final_softcap
        if config.num_real_tokens < config.vocab_size:
            logits[:, config.num_real_tokens :] = float("-inf")
        return logits

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as they are stored, a tied embedding counted once."""
        linears = sum(linear.num_bytes for layer in self.layers for linear in layer.linears)
        embedding = 0 if self.config.tie_word_embeddings else self.embedding.nbytes
        return linears + self.head.num_bytes + embedding

    def _layer(
        self,
        layer: DecoderLayer,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        ctx: ForwardContext,
        group: int,
        pages: KVPages,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        config, ops, eps = self.config, self.ops, self.config.rms_norm_eps
        normed, total = ops.add_rms_norm(x, residual, layer.input_norm, eps)
        kv = ctx.groups[group]
        q = ops.rotary_and_write(layer.qkv(normed), *rotation, pages, kv.slots, layer.head_norms)
        attended = ops.attention(
            q, pages, ctx, kv, config.attention_scale, config.attention_softcap
        )
        x = layer.output(attended)
        if layer.pre_mlp_norm is None or layer.post_mlp_norm is None:
            normed, total = ops.add_rms_norm(x, total, layer.post_attention_norm, eps)
            x = layer.down(ops.gated_activation(layer.gate_up(normed), config.activation))
            return x, total
        x = rms_norm(x, layer.post_attention_norm, eps)
        normed, total = ops.add_rms_norm(x, total, layer.pre_mlp_norm, eps)
        x = layer.down(ops.gated_activation(layer.gate_up(normed), config.activation))
        return rms_norm(x, layer.post_mlp_norm, eps), total

    def _load_layer(self, index: int) -> DecoderLayer:
        config, at = self.config, f"model.layers.{index}"
        qkv = [f"{at}.self_attn.{name}_proj" for name in "qkv"]
        mlp = [f"{at}.mlp.{name}_proj" for name in ("gate", "up")]
        norms = None
        if config.qk_norm:
            query = self._norm(f"{at}.self_attn.q_norm.weight")
            key = self._norm(f"{at}.self_attn.k_norm.weight")
            norms = HeadNorms(query, key, config.rms_norm_eps)
        sandwich = config.sandwich_norms
        before, after = (f"{at}.{w}_feedforward_layernorm.weight" for w in ("pre", "post"))
        return DecoderLayer(
            kind=config.layer_kinds[index],
            input_norm=self._norm(f"{at}.input_layernorm.weight"),
            qkv=self._linear(f"{at}.self_attn.qkv_proj", qkv, config.qkv_bias),
            output=self._linear(
                f"{at}.self_attn.o_proj", [f"{at}.self_attn.o_proj"], config.output_bias
            ),
            post_attention_norm=self._norm(f"{at}.post_attention_layernorm.weight"),
            gate_up=self._linear(f"{at}.mlp.gate_up_proj", mlp, config.mlp_bias),
            down=self._linear(f"{at}.mlp.down_proj", [f"{at}.mlp.down_proj"], config.mlp_bias),
            head_norms=norms,
            pre_mlp_norm=self._norm(before) if sandwich else None,
            post_mlp_norm=self._norm(after) if sandwich else None,
        )

    def _linear(self, name: str, parts: list[str], has_bias: bool) -> Linear:
        """Pack the rows of several projections into one product."""
        weight = torch.cat([self._tensor(f"{part}.weight") for part in parts])
        bias = torch.cat([self._tensor(f"{part}.bias") for part in parts]) if has_bias else None
        return self._make_linear(name, weight, bias)

    def _tensor(self, name: str) -> torch.Tensor:
        return self._weights.get(name, self.dtype).to(self.device)

    def _norm(self, name: str) -> torch.Tensor:
        return self._weights.get(name, torch.float32).to(self.device)

    def _rope_tables(self, num_positions: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        config = self.config
        ropes = {"full": config.rope, "window": config.rope_window or config.rope}
        tables = {}
        for kind in set(config.layer_kinds):
            cos, sin = rope_table(ropes[kind], config.head_dim, num_positions, self.dtype)
            tables[kind] = (cos.to(self.device), sin.to(self.device))
        return tables
