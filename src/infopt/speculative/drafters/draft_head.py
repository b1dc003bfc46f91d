"""A trained head guesses from the model's last hidden state (see `infopt.speculative.head`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infopt.engine.drafting import Draft, Drafter, DraftRequest, DraftTarget
from infopt.engine.open_drafts import DraftVocabulary, draft_rounds, open_drafts
from infopt.errors import DraftModelError
from infopt.speculative.config import (
    ACCEPTANCE,
    DRAFTERS,
    MAX_DRAFT_TOKENS,
    check_choice,
    check_count,
    check_text,
    need_target,
)
from infopt.speculative.head import HeadConfig, HeadNetwork, read_head

if TYPE_CHECKING:
    from infopt.engine.runner import ModelRunner
    from infopt.engine.sequence import Sequence as EngineSequence

logger = logging.getLogger(__name__)


@DRAFTERS.register("draft_head")
@dataclass(frozen=True, slots=True)
class DraftHeadOptions:
    """Options of ``{"method": "draft_head", "model": FOLDER}``.

    Attributes:
        model: Folder that ``infopt train-draft`` wrote.
        num_speculative_tokens: Most guesses per step.
        acceptance: How guesses of sampled outputs are judged (``ratio`` or ``equal``).
    """

    model: str = ""
    num_speculative_tokens: int = 3
    acceptance: str = "ratio"

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: Names option, value and range.
        """
        check_text("model", self.model, "Train a head: infopt train-draft MODEL --out FOLDER.")
        check_count("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFT_TOKENS)
        check_choice("acceptance", self.acceptance, ACCEPTANCE)

    def build(self, target: DraftTarget | None = None) -> Drafter:
        """Read the head and return the drafter.

        Raises:
            ModelNotFoundError: The folder holds no head.
            DraftModelError: It was trained for a model of another shape.
        """
        return DraftHead(self, need_target("draft_head", target))


class DraftHead:
    """A drafter that needs the hidden state of each output's newest computed token, nothing else.

    Args:
        options: Which head.
        target: The model that is guessed for.
    """

    kv_bytes_per_token = 0.0
    num_scratch_tokens = 0
    wants_hidden = True

    def __init__(self, options: DraftHeadOptions, target: DraftTarget) -> None:
        """Read the weights."""
        folder = read_head(Path(options.model))
        model, self.max_tokens = target.model, options.num_speculative_tokens
        self._is_made_for_it = _check_fit(folder.config, target)
        self._is_coupled = options.acceptance == "equal"
        self._eos_token_ids = model.config.eos_token_ids
        self._network = HeadNetwork(folder.config, folder.weights, model)
        self._vocabulary = DraftVocabulary(
            model.config.vocab_size,
            model.config.num_real_tokens,
            folder.weights.token_ids.to(model.device),
        )
        self._record, self._num_draft_tokens = folder.record, folder.config.num_draft_tokens
        self._states: dict[int, tuple[int, torch.Tensor]] = {}

    @property
    def num_outputs(self) -> int:
        """Outputs that a hidden state is kept of."""
        return len(self._states)

    def attach(self, runner: ModelRunner, num_pages: int, num_tokens: int) -> None:
        """Need no pages."""

    def observe(self, rows: list[tuple[EngineSequence, int]], hidden: torch.Tensor) -> None:
        """Keep the states of each output's last rows: which of them is needed is not known yet."""
        kept = hidden.clone()
        starts = {sequence.seq_id: i for i, (sequence, _) in reversed(list(enumerate(rows)))}
        order = sorted(starts.items(), key=lambda item: item[1])
        ends = [start for _, start in order[1:]] + [len(rows)]
        for (seq_id, start), end in zip(order, ends, strict=True):
            self._states[seq_id] = (rows[start][1], kept[start:end])

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return the guesses for each request."""
        found = [self._state_before_newest(request) for request in requests]
        known = [i for i, state in enumerate(found) if state is not None]
        if not known:
            return [Draft([]) for _ in requests]
        states = torch.stack([state for state in found if state is not None])
        drafts = iter(self._draft([requests[i] for i in known], states))
        return [Draft([]) if state is None else next(drafts) for state in found]

    def forget(self, seq_id: int) -> None:
        """Drop the state of an output."""
        self._states.pop(seq_id, None)

    def reset_prefix_cache(self) -> None:
        """Keep everything: nothing is shared."""

    def describe(self) -> dict[str, Any]:
        """Return facts about the head."""
        return {
            "weights_bytes": self._network.weight_bytes,
            "num_draft_tokens": self._num_draft_tokens,
            "trained_for_this_model": self._is_made_for_it,
            "training": dict(self._record),
            "kv_bytes_per_token": 0.0,
        }

    def check_integrity(self) -> None:
        """Keep no invariant."""

    def _state_before_newest(self, request: DraftRequest) -> torch.Tensor | None:
        """Return the hidden state of the token before the newest, if it was computed last."""
        first, states = self._states.get(request.seq_id, (0, None))
        place = len(request.token_ids) - 2 - first
        return states[place] if states is not None and 0 <= place < len(states) else None

    def _draft(self, requests: list[DraftRequest], states: torch.Tensor) -> list[Draft]:
        newest = [request.token_ids[-1] for request in requests]
        logits, states = self._network.step(states, newest)
        with open_drafts(requests, self._eos_token_ids, self._is_coupled) as drafts:

            def step(places: list[int]) -> torch.Tensor:
                nonlocal states
                kept = states if len(places) == len(states) else states[places]
                rows = [drafts[place].token_ids[-1] for place in places]
                logits, after = self._network.step(kept, rows)
                if len(places) == len(states):
                    states = after
                else:
                    states[places] = after
                return logits

            draft_rounds(drafts, logits, step, self._vocabulary)
            return [draft.result() for draft in drafts]


def _check_fit(config: HeadConfig, target: DraftTarget) -> bool:
    """Refuse a head for another shape of model; tell whether it was trained for these weights."""
    model = target.model.config
    ours = {"hidden_size": model.hidden_size, "vocab_size": model.vocab_size}
    for name, value in ours.items():
        if getattr(config, name) != value:
            raise DraftModelError(
                f"speculative: the head was trained for a model with {name} "
                f"{getattr(config, name)}, this one has {value}.",
                field="speculative.model",
                value=getattr(config, name),
                remedy="Train one for it: infopt train-draft MODEL --out FOLDER.",
            )
    is_same = config.model_identity == target.identity
    if not is_same:
        logger.warning("the draft head was trained for other weights: fewer guesses may be kept")
    return is_same
