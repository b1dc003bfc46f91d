"""`TransformersModel`: a decoder of transformers in the place of the native one.

It has the same face to the runner: a flat batch in, hidden states out, logits from those. A step is
one forward pass per rectangle (see :mod:`infopt.models.fallback.step`), so a step with prefill
chunks of three lengths and any number of decodes is four passes.
"""

from __future__ import annotations

from typing import Any

import torch

from infopt.errors import UnsupportedModelError
from infopt.models.fallback.cache import PagedCache
from infopt.models.fallback.load import Loaded, decoder_name
from infopt.models.fallback.parts import LayerPartPages, LayerParts
from infopt.models.fallback.probe import probe_layers, probe_state_bytes
from infopt.models.fallback.self_check import check_pages, check_states
from infopt.models.fallback.step import Rectangle, cut, padding_mask, token_rows
from infopt.ops import ForwardContext, OpSet

STATE_PROBE_TOKENS = 64


class TransformersModel:
    """Runs a text decoder of transformers over pages, or over states of its own.

    Args:
        loaded: The modules.
        ops: Resolved ops; only sampling is used.
        dtype: Compute type.
        device: Where the modules are.
        block_size: Tokens per page.

    Attributes:
        config: Facts of the model.
        layers_cache: What each layer caches per token (empty if it runs unpaged).
        why_unpaged: Why it has states of its own; None: keys, values and what else lie in pages.
        check_error: Error of the two ways that were compared (see `check_pages`, `check_states`).
        state_bytes_per_token: Most bytes per token of an unpaged state; 0 where there are pages.
    """

    def __init__(
        self,
        loaded: Loaded,
        ops: OpSet,
        *,
        dtype: torch.dtype,
        device: torch.device,
        block_size: int,
    ) -> None:
        """Take decoder and head apart, and look at what the decoder caches."""
        self.config, self.device, self.dtype = loaded.config, device, dtype
        self._ops, self.block_size = ops, block_size
        causal = loaded.causal
        self.weight_bytes = sum(weight.nbytes for weight in causal.parameters())
        self.bytes_per_weight = self.weight_bytes / self.config.num_parameters
        self._base, self._head = _take_apart(causal)
        self._text = self._base.config.get_text_config(decoder=True)
        self.why_unpaged = loaded.why_unpaged
        self.layers_cache: tuple[LayerParts, ...] = ()
        self.state_bytes_per_token = 0.0
        self.check_error: float | None = None
        if self.why_unpaged is None:
            self.layers_cache = probe_layers(self._base, self._text, device)
            self.check_error = check_pages(self, self._base, self._text)
        else:
            self.check_error = check_states(self, self._base, self._text)
            self.state_bytes_per_token = probe_state_bytes(
                self._base, self._text, device, STATE_PROBE_TOKENS
            )

    @property
    def ops(self) -> OpSet:
        """The resolved ops; they cannot be replaced, since the modules do not call them."""
        return self._ops

    @ops.setter
    def ops(self, ops: OpSet) -> None:
        raise _no_ops(self.config.family)

    @property
    def linears(self) -> list[Any]:
        """Not there: products lie inside transformers' modules."""
        raise _no_ops(self.config.family)

    @property
    def layers(self) -> list[Any]:
        """Not there: layers are transformers' modules."""
        raise _no_ops(self.config.family)

    def bind(self, pages: Any) -> None:
        """Pages come with every step; there is nothing to bind."""

    def describe_ops(self) -> dict[str, dict[str, str]]:
        """Return who computes, for records and ``infopt doctor``."""
        reason = f"transformers' own modules of {self.config.family}"
        sampling = self._ops.describe()["draw_tokens"]
        return {"decoder": {"backend": "transformers", "reason": reason}, "draw_tokens": sampling}

    @torch.inference_mode()
    def forward_hidden(self, ctx: ForwardContext, pages: Any) -> torch.Tensor:
        """Return the normed hidden state of every token, ``(num_tokens, hidden_size)``.

        Args:
            ctx: The batch.
            pages: By layer, its pages; or by first page, the states of sequences.
        """
        shape = (ctx.num_tokens, self.config.hidden_size)
        hidden = torch.empty(shape, dtype=self.dtype, device=self.device)
        run = self._run_paged if self.why_unpaged is None else self._run_states
        for rectangle in cut(ctx):
            run(ctx, rectangle, pages, hidden)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the family's own head to normed hidden states ``(num_rows, hidden_size)``."""
        logits = self._head(hidden).float()
        if self.config.num_real_tokens < self.config.vocab_size:
            logits[:, self.config.num_real_tokens :] = float("-inf")
        return logits

    def _run_paged(
        self,
        ctx: ForwardContext,
        rectangle: Rectangle,
        pages: dict[int, LayerPartPages],
        hidden: torch.Tensor,
    ) -> None:
        cache = PagedCache(ctx, rectangle, self.layers_cache, pages, self.block_size)
        rows = token_rows(ctx, rectangle)
        out = self._base(
            input_ids=ctx.input_ids[rows],
            attention_mask=padding_mask(rectangle, self.device),
            position_ids=ctx.positions[rows],
            past_key_values=cache,
            use_cache=True,
        )
        hidden[rows] = out.last_hidden_state.to(hidden.dtype)

    def _run_states(
        self,
        ctx: ForwardContext,
        rectangle: Rectangle,
        states: dict[int, Any],
        hidden: torch.Tensor,
    ) -> None:
        """States cannot be padded: one pass per sequence."""
        rows = token_rows(ctx, rectangle)
        for place, own in zip(rectangle.sequences, rows, strict=True):
            first_page = int(ctx.groups[0].block_tables[place, 0])
            positions = ctx.positions[own]
            if first_page == 0:  # the null page: padding, whose results nobody reads
                hidden[own] = 0
                continue
            if int(positions[0]) == 0:
                states[first_page] = self._new_state()
            out = self._base(
                input_ids=ctx.input_ids[own][None],
                position_ids=positions[None],
                past_key_values=states[first_page],
                use_cache=True,
            )
            hidden[own] = out.last_hidden_state[0].to(hidden.dtype)

    def _new_state(self) -> Any:
        from transformers.cache_utils import DynamicCache

        return DynamicCache(config=self._text)


class _GivenHidden(torch.nn.Module):
    """Stands where the decoder was, so that the family's own code makes logits of hidden states."""

    hidden: torch.Tensor

    def forward(self, *args: Any, **kwargs: Any) -> _DecoderOutput:
        del args, kwargs
        return _DecoderOutput(self.hidden)


class _DecoderOutput:
    """What a decoder returns, as far as heads read it: all further outputs are None."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Head:
    """The family's head with whatever caps and scales it applies."""

    def __init__(self, causal: Any, given: _GivenHidden) -> None:
        self._causal, self._given = causal, given

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        self._given.hidden = hidden[None]
        nothing = torch.zeros((1, 1), dtype=torch.int64, device=hidden.device)
        try:
            return self._causal(input_ids=nothing, use_cache=False).logits[0]
        finally:
            del self._given.hidden


def _take_apart(causal: Any) -> tuple[Any, _Head]:
    """Return the decoder, and what turns its hidden states into logits."""
    name, given = decoder_name(causal), _GivenHidden()
    base = getattr(causal, name)
    setattr(causal, name, given)
    return base, _Head(causal, given)


def _no_ops(family: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{family} runs through transformers' modules, which do not call the engine's ops.",
        field="model_type",
        value=family,
        remedy="Time a family that runs natively.",
    )
