"""The native decoder: one class runs every supported family on the ops seam.

Families differ by values of :class:`~infopt.models.config.ModelConfig`. Linear layers that read the
same input are packed into one product (q, k, v; gate, up). The decoder knows nothing of requests:
it computes a :class:`~infopt.ops.context.ForwardContext` and writes keys and values through it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence

import torch

from infopt.models.config import ModelConfig
from infopt.models.embedding import DenseEmbedding, Embedding
from infopt.models.linear_source import LinearFactory, LinearSource, WeightSource
from infopt.models.mlp_loader import MlpLoader
from infopt.models.rope import rope_table
from infopt.ops import ForwardContext, OpSet
from infopt.ops.layer_stack import LayerPages, LayerStack, LayerWeights, StackSpec
from infopt.ops.linear import Linear
from infopt.ops.mlp import SparseMlp
from infopt.ops.rotary import HeadNorms


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
        embedding: Replaces the dense embedding.
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
        embedding: Embedding | None = None,
        progress: Callable[[Sequence[int]], Sequence[int]] = lambda layers: layers,
    ) -> None:
        """Load all weights."""
        self.config, self.ops, self.device, self.dtype = config, ops, device, dtype
        self._weights = weights
        self._make_linear = make_linear or (
            lambda source: ops.linear(source.weight(), source.bias())
        )
        self.embedding = embedding or DenseEmbedding(self._tensor("model.embed_tokens.weight"))
        # Gemma rounds the factor to the compute type before it multiplies.
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype).item()
        self.final_norm = self._norm("model.norm.weight")
        head_name = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
        self.head = self._linear("lm_head", [head_name], has_bias=False)
        self._mlps = MlpLoader(config, weights, ops, self._make_linear, device, dtype)
        self.layers = [self._load_layer(i) for i in progress(range(config.num_layers))]
        self._rope = self._rope_tables(max_positions)
        self._stack: tuple[LayerPages, LayerStack] | None = None
        del self._weights, self._mlps

    @torch.inference_mode()
    def forward(self, ctx: ForwardContext, pages: LayerPages) -> torch.Tensor:
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
    def forward_hidden(self, ctx: ForwardContext, pages: LayerPages) -> torch.Tensor:
        """Return the normed hidden state of every token, ``(num_tokens, hidden_size)``."""
        x = self.embedding(ctx.input_ids)
        if self.config.embedding_scale != 1.0:
            x = x * self._embedding_scale
        rotations = {
            kind: (cos.index_select(0, ctx.positions), sin.index_select(0, ctx.positions))
            for kind, (cos, sin) in self._rope.items()
        }
        return self.bind(pages)(x, ctx, rotations)

    def without_layers(self, skipped: Collection[int]) -> Decoder:
        """Return a decoder that leaves layers out; all weights are shared with this one.

        Its pages are those of the layers that are left, in order.
        """
        partial = copy.copy(self)
        partial.layers = [x for i, x in enumerate(self.layers) if i not in skipped]
        partial._stack = None
        return partial

    def bind(self, pages: LayerPages) -> LayerStack:
        """Return the layers bound to their pages; binding the same pages again costs nothing."""
        if self._stack is None or self._stack[0] is not pages:
            config = self.config
            spec = StackSpec(
                layers=self.layers,
                final_norm=self.final_norm,
                eps=config.rms_norm_eps,
                attention_scale=config.attention_scale,
                attention_softcap=config.attention_softcap,
                activation=config.activation,
                dtype=self.dtype,
            )
            self._stack = (pages, self.ops.layer_stack(spec, pages, self.ops))
        return self._stack[1]

    def describe_ops(self) -> dict[str, dict[str, str]]:
        """Return backend and reason per op, for records and ``infopt doctor``."""
        described = self.ops.describe()
        if self._stack is not None:
            choice = self._stack[1].choice
            described["layer_stack"] = {"backend": choice.backend, "reason": choice.reason}
        for layer in self.layers:
            if isinstance(layer.mlp, SparseMlp):
                choice = layer.mlp.experts.choice
                described["experts"] = {"backend": choice.backend, "reason": choice.reason}
        return described

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
    def linears(self) -> list[Linear]:
        """All products of a step, the head last."""
        return [linear for layer in self.layers for linear in layer.linears] + [self.head]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as they are stored, a tied embedding counted once.

        A head in another format than the embedding is a second copy, and both count.
        """
        tied, num_bytes = self.config.tie_word_embeddings, self.embedding.num_bytes
        is_shared = tied and self.head.num_bytes == num_bytes
        products = sum(linear.num_bytes for linear in self.linears)
        return products + (0 if is_shared else num_bytes)

    @property
    def bytes_per_weight(self) -> float:
        """Bytes that a step reads per weight, scales included."""
        num_weights = sum(linear.in_features * linear.out_features for linear in self.linears)
        return sum(linear.num_bytes for linear in self.linears) / num_weights

    def _load_layer(self, index: int) -> LayerWeights:
        config, at = self.config, f"model.layers.{index}"
        qkv = [f"{at}.self_attn.{name}_proj" for name in "qkv"]
        norms = self._query_and_key_norms(at) if config.qk_norm else None
        sandwich = config.sandwich_norms
        before, after = (f"{at}.{w}_feedforward_layernorm.weight" for w in ("pre", "post"))
        return LayerWeights(
            kind=config.layer_kinds[index],
            input_norm=self._norm(f"{at}.input_layernorm.weight"),
            qkv=self._linear(f"{at}.self_attn.qkv_proj", qkv, config.qkv_bias),
            output=self._linear(
                f"{at}.self_attn.o_proj", [f"{at}.self_attn.o_proj"], config.output_bias
            ),
            post_attention_norm=self._norm(f"{at}.post_attention_layernorm.weight"),
            mlp=self._mlps.layer(index),
            head_norms=None if config.qk_norm_rows else norms,
            row_norms=norms if config.qk_norm_rows else None,
            pre_mlp_norm=self._norm(before) if sandwich else None,
            post_mlp_norm=self._norm(after) if sandwich else None,
        )

    def _query_and_key_norms(self, at: str) -> HeadNorms:
        query, key = (self._norm(f"{at}.self_attn.{name}_norm.weight") for name in "qk")
        return HeadNorms(query, key, self.config.rms_norm_eps)

    def _linear(self, name: str, parts: list[str], has_bias: bool) -> Linear:
        """Pack the rows of several projections into one product."""
        return self._make_linear(
            LinearSource(self._weights, name, parts, has_bias, self.dtype, self.device)
        )

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
