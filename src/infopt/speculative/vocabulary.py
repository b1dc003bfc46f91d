"""Whether a drafter speaks the tokens of the model that it guesses for."""

from __future__ import annotations

from infopt.engine.drafting import DraftTarget
from infopt.engine.weights import LoadedModel
from infopt.errors import DraftModelError


def check_vocabulary(draft: LoadedModel, target: DraftTarget) -> None:
    """Refuse a draft model whose ids mean other tokens.

    Rows of an embedding beyond the tokenizer's entries may differ: no text holds them. Tokens that
    only the draft model knows are never guessed. Without tokenizers only the numbers are compared.

    Raises:
        DraftModelError: Names the first id that differs.
    """
    num_draft, num_target = (model.config.num_real_tokens for model in (draft.model, target.model))
    if num_draft < num_target:
        raise DraftModelError(
            f"speculative: the draft model knows {num_draft} tokens, the model {num_target}.",
            field="speculative.model",
            value=num_draft,
            remedy="Use a draft model with the tokenizer of the model.",
        )
    if draft.tokenizer is not None and target.tokenizer is not None:
        _check_tokens(draft.tokenizer.hf.get_vocab(), target.tokenizer.hf.get_vocab())


def _check_tokens(draft: dict[str, int], target: dict[str, int]) -> None:
    ours = {index: token for token, index in target.items()}
    theirs = {index: token for token, index in draft.items()}
    for index in sorted(ours):
        if theirs.get(index) != ours[index]:
            raise DraftModelError(
                f"speculative: id {index} is {ours[index]!r} to the model, but "
                f"{theirs.get(index)!r} to the draft model.",
                field="speculative.model",
                value=index,
                remedy="Use a draft model with the tokenizer of the model.",
            )
