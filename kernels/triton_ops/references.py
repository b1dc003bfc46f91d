"""PyTorch references, in float64, of the kernels that are not ops of the decoder yet.

They say what a kernel computes; tests on the CPU and checks on a GPU compare with them.
"""

from __future__ import annotations

import torch


def int8_linear(
    x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return ``x (scale * codes)^T + b``; also right for float8 codes."""
    y = x.double() @ (codes.double() * scale.double().unsqueeze(1)).T
    return y if bias is None else y + bias.double()


def int4_linear(
    x: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    bias: torch.Tensor | None,
    group_size: int,
) -> torch.Tensor:
    """Return the product with ``scale[g, o] * codes[o, i] + offset[g, o]``, g = i // group."""
    group = torch.arange(codes.shape[1], device=codes.device) // group_size
    weight = scale.double()[group].T * codes.double() + offset.double()[group].T
    y = x.double() @ weight.T
    return y if bias is None else y + bias.double()


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes and float32 scales of each row."""
    scale = x.float().abs().amax(1) / 127.5
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (x.float() / safe.unsqueeze(1)).round().clamp(-128, 127).to(torch.int8), scale


def w8a8_linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return the product of quantized rows with an int8 weight."""
    codes, row_scale = quantize_rows(x)
    y = int8_linear(codes, weight, scale, None) * row_scale.double().unsqueeze(1)
    return y if bias is None else y + bias.double()


def route(
    logits: torch.Tensor,
    k: int,
    *,
    scoring: str = "softmax",
    bias: torch.Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    best_two: bool = False,
    renormalize: bool = True,
    factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids ``(num_tokens, k)``, best first and ties to the lowest, and their weights."""
    wide = logits.double()
    scores = wide.softmax(-1) if scoring == "softmax" else wide.sigmoid()
    choice = scores if bias is None else scores + bias.double()
    if num_groups > 1:
        groups = choice.view(choice.shape[0], num_groups, -1)
        value = groups.topk(2, dim=-1).values.sum(-1) if best_two else groups.amax(-1)
        kept = value.sort(descending=True, stable=True).indices[:, :top_groups]
        mask = torch.zeros_like(value, dtype=torch.bool).scatter(1, kept, True)
        choice = groups.masked_fill(~mask.unsqueeze(-1), float("-inf")).flatten(1)
    ids = choice.sort(descending=True, stable=True).indices[:, :k]
    weights = scores.gather(1, ids)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights * factor


def grouped_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor,
    slot_weight: torch.Tensor | None = None,
    *,
    per_slot: bool = False,
) -> torch.Tensor:
    """Return ``(num_tokens * k, out_features)``: each slot's row times its expert's weight."""
    rows = x if per_slot else x.repeat_interleave(ids.shape[1], dim=0)
    out = torch.zeros(rows.shape[0], weight.shape[1], dtype=torch.float64, device=x.device)
    for expert in ids.unique().tolist():
        slots = (ids.flatten() == expert).nonzero().squeeze(1)
        out[slots] = rows[slots].double() @ weight[expert].double().T
    return out if slot_weight is None else out * slot_weight.double().unsqueeze(1)


def verify_drafts(
    drafted: torch.Tensor,
    counts: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor | None,
    uniforms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return accepted counts, and the cumulative sums ``(num_seqs, vocab_size)`` to draw from.

    The next token is the first whose sum is above the last uniform number times the total.
    """
    accepted, sums = [], []
    for i, count in enumerate(counts.tolist()):
        known = _draft_distribution(drafted[i], draft if draft is None else draft[i], target)
        place = 0
        while place < count:
            token = int(drafted[i, place])
            if uniforms[i, place].double() * known[place, token] > target[i, place, token].double():
                break
            place += 1
        mass = target[i, place].double()
        if place < count:
            mass = (mass - known[place]).clamp_min(0)
        accepted.append(place)
        sums.append(mass.cumsum(0))
    return torch.tensor(accepted, dtype=torch.int32), torch.stack(sums)


def _draft_distribution(
    drafted: torch.Tensor, draft: torch.Tensor | None, target: torch.Tensor
) -> torch.Tensor:
    if draft is not None:
        return draft.double()
    return torch.nn.functional.one_hot(drafted, target.shape[-1]).double()


def compact(
    keys: torch.Tensor, values: torch.Tensor, source: torch.Tensor, target: torch.Tensor
) -> None:
    """Copy rows within pages, all at once."""
    block_size = keys.shape[2]
    head = torch.arange(keys.shape[1], device=keys.device).unsqueeze(1)
    for pages in (keys, values):
        rows = pages[source // block_size, head, source % block_size]
        pages[(target // block_size).unsqueeze(0), head, (target % block_size).unsqueeze(0)] = rows
