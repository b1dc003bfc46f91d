"""transformers alone: one sequence at a time, its own cache and attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infopt.evals.families.cases import FamilyCase
from infopt.models.hf_config import read_json
from infopt.models.quiet import quiet_transformers
from infopt.outputs import PositionLogprobs, RequestOutput

NEAR_TIE = 1e-3
"""Two best logits closer than this may come in either order."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far outputs are from transformers.

    Attributes:
        error: Largest |difference| / max |logit| of any row.
        num_tokens: Rows compared.
        num_near_ties: Rows with another best token, where the reference's two best are a near tie.
        num_wrong: Rows with another best token, where they are not.
    """

    error: float
    num_tokens: int
    num_near_ties: int = 0
    num_wrong: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            max(self.error, other.error),
            self.num_tokens + other.num_tokens,
            self.num_near_ties + other.num_near_ties,
            self.num_wrong + other.num_wrong,
        )


class Reference:
    """A checkpoint in transformers.

    Args:
        case: Its family.
        folder: Its files.
    """

    def __init__(self, case: FamilyCase, folder: Path) -> None:
        """Load it with eager attention, in float32."""
        import transformers

        auto: Any = transformers.AutoModelForCausalLM
        if case.kind == "vision":
            auto = transformers.AutoModelForImageTextToText
        config = None
        if case.written_as is not None:
            raw = read_json(folder / "config.json") | {"model_type": case.written_as}
            config = transformers.CONFIG_MAPPING[case.written_as].from_dict(raw)
        with quiet_transformers():
            self._model = auto.from_pretrained(
                folder, config=config, dtype=torch.float32, attn_implementation="eager"
            ).eval()

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Return float32 logits at every position, ``(num_tokens, vocab_size)``."""
        return self._model(torch.tensor([list(token_ids)]), use_cache=False).logits[0].float()

    def compare_logits(self, token_ids: Sequence[int], ours: torch.Tensor) -> Agreement:
        """Compare logits of a given text."""
        theirs = self.logits(token_ids)
        error = ((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)).max()
        return Agreement(float(error), len(token_ids))

    def compare_output(self, output: RequestOutput) -> Agreement:
        """Compare the reported log-probabilities and best tokens of a completion."""
        completion = output.outputs[0]
        assert completion.logprobs is not None
        tokens = list(completion.token_ids)
        text = [*output.prompt_token_ids, *tokens]
        rows = self.logits(text)[len(output.prompt_token_ids) - 1 : -1]
        agreements = [
            _compare_row(row, token, entry)
            for row, token, entry in zip(rows, tokens, completion.logprobs, strict=True)
        ]
        return sum(agreements[1:], agreements[0])


def _compare_row(row: torch.Tensor, token: int, entry: PositionLogprobs) -> Agreement:
    difference = abs(entry[token].logprob - float(torch.log_softmax(row, -1)[token]))
    # A log-probability moves by the token's logit and by the normaliser: twice a logit at most.
    error = difference / 2 / float(row.abs().max())
    best = next(t for t, value in entry.items() if value.rank == 1)
    two = row.topk(2)
    if best == int(two.indices[0]):
        return Agreement(error, 1)
    is_near_tie = float(two.values[0] - two.values[1]) < NEAR_TIE
    return Agreement(error, 1, int(is_near_tie), int(not is_near_tie))
