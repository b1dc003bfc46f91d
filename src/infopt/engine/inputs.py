"""What people hand to a batch: one thing or a list, brought into one form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from infopt.errors import PromptError, SamplingParamsError
from infopt.sampling_params import SamplingParams

Prompt = str | list[int]


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return a list of prompts; a list of ids is one prompt.

    Raises:
        PromptError: If it is neither text nor a list.
    """
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise PromptError(
            f"prompts must be text, token ids or a list of either, got {prompts!r}.",
            field="prompts",
            value=prompts,
        )
    prompts = list(prompts)  # type: ignore[arg-type]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]


def per_prompt(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """Return one object per prompt; one alone is for all, None is the default.

    Raises:
        SamplingParamsError: If it is something else.
        PromptError: If there are more or fewer than prompts.
    """
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if not isinstance(params, list | tuple):
        raise SamplingParamsError(
            f"sampling_params must be a SamplingParams or a list of them, got {params!r}.",
            field="sampling_params",
            value=params,
            remedy="SamplingParams.from_dict reads plain data.",
        )
    if len(params) != num_prompts:
        raise PromptError(
            f"{num_prompts} prompts, but {len(params)} sampling_params.",
            field="sampling_params",
            value=len(params),
            remedy="Give one for all, or one per prompt.",
        )
    return list(params)


def scoring_params(start: int | Sequence[int]) -> SamplingParams | list[SamplingParams]:
    """Return what scores prompts and makes no token.

    Args:
        start: First position that is scored, for all prompts or one each.

    Raises:
        SamplingParamsError: If a start is no position.
    """
    if isinstance(start, list | tuple):
        made = {at: _scoring(at) for at in set(start)}
        return [made[at] for at in start]
    return _scoring(start)  # type: ignore[arg-type]


def _scoring(start: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=start, detokenize=False
    )
