"""The attention and mask functions that transformers' modules call while they run on pages.

They are registered under one name. Everything a module hands over is used or refused by name: an
argument that is silently ignored is a wrong answer (sinks, windows, caps and sparse choices have
all been lost that way elsewhere).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from infopt.errors import UnsupportedModelError

NAME = "infopt_pages"

_WITHOUT_EFFECT = frozenset(
    (
        "position_ids",  # the rotary embedding has used them
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "is_causal",  # the mask says what is visible
    )
)


def register() -> None:
    """Make both functions known to transformers; doing it again changes nothing."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)


def mask(*, allow_is_causal_skip: bool = True, **arguments: Any) -> torch.Tensor:
    """Return which columns each query sees, bool ``(sequences, 1 or heads, num_new, columns)``.

    Unlike transformers' own, it is never left out: a kernel's idea of causal is not that of a
    rectangle with a past.

    Raises:
        UnsupportedModelError: If tokens are to see later ones.
    """
    from transformers.masking_utils import sdpa_mask

    del allow_is_causal_skip
    if "allow_is_bidirectional_skip" in arguments:  # only masks of that kind have it
        raise UnsupportedModelError(
            f"{arguments['config'].model_type} lets tokens see later ones (a bidirectional mask).",
            field="model_type",
            remedy="Use a model with causal attention.",
        )
    visible = sdpa_mask(allow_is_causal_skip=False, **arguments)
    assert visible is not None
    return visible


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend over gathered rows.

    Args:
        module: The attention module that calls.
        query: ``(sequences, query heads, num_new, width)``.
        key: ``(sequences, key heads, columns, width)``.
        value: ``(sequences, key heads, columns, value width)``.
        attention_mask: What `mask` returned.
        scaling: Factor on q.k (default: 1 / sqrt(width)).
        dropout: 0.
        sliding_window: Columns a query sees, itself included.
        softcap: c * tanh(score / c).
        s_aux: One score per query head that takes part in the softmax and adds nothing.
        indices: int ``(sequences, num_new, k)``: the columns that sparse attention chose.
        others: Refused by name unless they are None or have no effect.

    Returns:
        ``(sequences, num_new, query heads, value width)``, and None for the weights.

    Raises:
        UnsupportedModelError: Names what is not honoured.
    """
    refuse_others(module, others, dropout)
    if attention_mask is None or attention_mask.dtype != torch.bool:
        raise _unsupported(module, "a mask of its own")
    if attention_mask.shape[-1] != key.shape[2]:
        raise _unsupported(module, "keys that are in no mask")
    visible = attention_mask
    if sliding_window is not None:
        visible = visible & _in_window(query.shape[2], key.shape[2], sliding_window, key.device)
    if indices is not None:
        visible = visible & _chosen(indices, key.shape[2])
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeats, 1) if repeats > 1 else x for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if softcap is None and s_aux is None:
        out = F.scaled_dot_product_attention(query, key, value, visible, scale=scale)
    else:
        out = _explicit(query, key, value, visible, scale, softcap, s_aux)
    return out.transpose(1, 2).contiguous(), None


def refuse_others(module: torch.nn.Module, others: dict[str, Any], dropout: float) -> None:
    """Refuse what would change the result and is not computed."""
    if dropout:
        raise _unsupported(module, f"dropout={dropout}")
    for name, value in others.items():
        if value is not None and name not in _WITHOUT_EFFECT:
            raise _unsupported(module, f"{name}")
    if others.get("output_attentions"):
        raise _unsupported(module, "output_attentions")
    if others.get("is_causal") is False:
        raise _unsupported(module, "is_causal=False")


def _explicit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax(cap(q.k)) v, with a column of sinks that adds to the denominator only."""
    scores = torch.matmul(query, key.transpose(2, 3)).float() * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible, float("-inf"))
    if s_aux is not None:
        sinks = s_aux.float().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights[..., : key.shape[2]].to(value.dtype), value)


def _in_window(num_new: int, columns: int, window: int, device: torch.device) -> torch.Tensor:
    """Queries are the last ``num_new`` columns."""
    queries = torch.arange(columns - num_new, columns, device=device)[:, None]
    return torch.arange(columns, device=device) > queries - window


def _chosen(indices: torch.Tensor, columns: int) -> torch.Tensor:
    chosen = torch.zeros((*indices.shape[:2], columns), dtype=torch.bool, device=indices.device)
    return chosen.scatter_(-1, indices.long(), True).unsqueeze(1)


def _unsupported(module: torch.nn.Module, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(module).__name__} hands {what} to attention, which pages cannot honour.",
        field=what,
        remedy="Run this family with transformers itself.",
    )
