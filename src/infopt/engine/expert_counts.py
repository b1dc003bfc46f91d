"""Counts which experts the tokens of each step went to.

The layers leave their choices in ``ForwardContext.expert_ids``, so counting costs one small copy
per step and no second pass of the router. What the counts say: `infopt.moe.statistics`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from infopt.models.config import MoeConfig
from infopt.ops import ForwardContext

if TYPE_CHECKING:
    from infopt.engine.step_plan import ScheduledSequence, StepPlan


@dataclass(slots=True)
class DistinctCounts:
    """Steps of equally many rows.

    Attributes:
        num_steps: How many.
        total: Distinct experts, summed over steps and layers.
        most: Most distinct experts of one layer in one step.
    """

    num_steps: int = 0
    total: int = 0
    most: int = 0


class _LastToken(NamedTuple):
    """Where the newest token of a sequence that was counted went, ``(num_layers, top_k)``."""

    position: int
    ids: torch.Tensor


@dataclass(slots=True)
class ExpertCounts:
    """Where tokens went since the start. Padding is not counted: it goes nowhere.

    Args:
        moe: The experts of the model.

    Attributes:
        layers: Indices of the layers that have experts; dimension ``num_layers`` below.
        load: int64 ``(2, num_layers, num_experts)``: tokens that went to each expert, those of
            prompts first, then those of decoding (guesses that were verified included).
        num_tokens: Tokens of prompts, tokens of decoding.
        distinct: By number of rows, steps that computed prompt tokens (first) or only decoded.
        first: int64 ``(num_layers, num_experts)``: tokens by their best expert, among those whose
            predecessor in the sequence is known.
        same_first: int64 ``(num_layers,)``: of those, tokens with the best expert of their
            predecessor.
        repeated: int64 ``(num_layers,)``: experts that they share with their predecessor.
        num_pairs: Tokens whose predecessor is known. Guesses are left out, and so is a token after
            a step that did not compute its sequence.
    """

    moe: MoeConfig
    layers: tuple[int, ...] = field(init=False)
    load: torch.Tensor = field(init=False)
    num_tokens: list[int] = field(default_factory=lambda: [0, 0], init=False)
    distinct: tuple[dict[int, DistinctCounts], dict[int, DistinctCounts]] = field(
        default_factory=lambda: ({}, {}), init=False
    )
    first: torch.Tensor = field(init=False)
    same_first: torch.Tensor = field(init=False)
    repeated: torch.Tensor = field(init=False)
    num_pairs: int = field(default=0, init=False)
    _last: dict[int, _LastToken] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Start at zero."""
        self.layers = tuple(i for i, sparse in enumerate(self.moe.is_sparse) if sparse)
        shape = len(self.layers), self.moe.num_experts
        self.load = torch.zeros((2, *shape), dtype=torch.int64)
        self.first = torch.zeros(shape, dtype=torch.int64)
        self.same_first = torch.zeros(shape[0], dtype=torch.int64)
        self.repeated = torch.zeros(shape[0], dtype=torch.int64)

    def prepare(self, ctx: ForwardContext, device: torch.device) -> None:
        """Ask the layers for their choices."""
        shape = (len(self.layers), ctx.num_tokens, self.moe.top_k)
        ctx.expert_ids = torch.empty(shape, dtype=torch.int64, device=device)

    def add_step(self, plan: StepPlan, ctx: ForwardContext) -> None:
        """Count a step that was computed.

        Args:
            plan: What it computed.
            ctx: Its batch, which went through :meth:`prepare`.
        """
        assert ctx.expert_ids is not None
        ids = ctx.expert_ids[:, plan.num_padding_tokens :].cpu()
        decodes = [item.is_decode for item in plan.scheduled]
        kinds = [int(item.is_decode) for item in plan.scheduled for _ in range(item.num_tokens)]
        is_decode = torch.tensor(kinds, dtype=torch.bool)
        loads = torch.stack([self._load(ids[:, rows]) for rows in (~is_decode, is_decode)])
        self.load += loads
        self.num_tokens[0] += len(kinds) - sum(kinds)
        self.num_tokens[1] += sum(kinds)
        distinct = (loads.sum(0) > 0).sum(1)
        counts = self.distinct[all(decodes)].setdefault(len(kinds), DistinctCounts())
        counts.num_steps += 1
        counts.total += int(distinct.sum())
        counts.most = max(counts.most, int(distinct.max()))
        self._add_pairs(plan.scheduled, ids)

    def _load(self, ids: torch.Tensor) -> torch.Tensor:
        """Count choices ``(num_layers, ...)`` by layer and expert."""
        num_layers, num_experts = self.first.shape
        offsets = torch.arange(num_layers) * num_experts
        flat = (ids.flatten(1) + offsets.unsqueeze(1)).flatten()
        return flat.bincount(minlength=num_layers * num_experts).view(num_layers, num_experts)

    def _add_pairs(self, items: list[ScheduledSequence], ids: torch.Tensor) -> None:
        """Compare each token with the one before it in its sequence."""
        before = ids.roll(1, dims=1)
        has_before = torch.zeros(ids.shape[1], dtype=torch.bool)
        newest: dict[int, _LastToken] = {}
        row = 0
        for item in items:
            end = row + item.num_known_tokens
            last = self._last.get(item.sequence.seq_id)
            if last is not None and last.position == item.start - 1:
                before[:, row], has_before[row] = last.ids, True
            has_before[row + 1 : end] = True
            if not item.sequence.is_finished:
                position = item.start + item.num_known_tokens - 1
                newest[item.sequence.seq_id] = _LastToken(position, ids[:, end - 1])
            row += item.num_tokens
        self._last = newest
        ids, before = ids[:, has_before], before[:, has_before]
        self.num_pairs += ids.shape[1]
        self.first += self._load(ids[..., 0])
        self.same_first += (ids[..., 0] == before[..., 0]).sum(1)
        self.repeated += (ids.unsqueeze(-1) == before.unsqueeze(-2)).sum((1, 2, 3))
