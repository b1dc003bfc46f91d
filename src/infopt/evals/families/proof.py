"""Runs one family through everything the engine does to a sequence, against transformers alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infopt.evals.families.cases import FamilyCase
from infopt.evals.families.reference import Agreement, Reference
from infopt.llm import LLM
from infopt.outputs import RequestOutput
from infopt.sampling_params import SamplingParams

MAX_ERROR = 1e-4
_PROMPT_LENGTHS = (9, 33, 40, 61)
_MAX_TOKENS = 10
_GROWING_TOKENS = 24
"""Outputs long enough that sequences which fit at first do not fit together later."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was seen of one family.

    Attributes:
        case: The family.
        description: What the engine says of itself.
        agreements: By feature (``scoring``, ``batched``, ``chunked``, ``prefix cache``,
            ``preemption``); a feature that the family does not have is missing.
    """

    case: FamilyCase
    description: dict[str, Any]
    agreements: dict[str, Agreement]

    @property
    def total(self) -> Agreement:
        """All features together."""
        first, *others = self.agreements.values()
        return sum(others, first)

    @property
    def holds(self) -> bool:
        """Whether all rows agree and near ties are rare (1 in 500 rows, at least one allowed)."""
        total = self.total
        few = total.num_near_ties <= max(1, total.num_tokens // 500)
        return total.error <= MAX_ERROR and not total.num_wrong and few


def prove(case: FamilyCase, folder: Path) -> Proof:
    """Run all features of a family.

    Args:
        case: The family.
        folder: A checkpoint of it (see `write_checkpoint`).

    Raises:
        AssertionError: If a feature was not exercised.
    """
    reference = Reference(case, folder)
    agreements: dict[str, Agreement] = {}
    with _llm(folder, max_num_batched_tokens=256) as llm:
        description = llm.engine.describe()
        text = _texts((130,), seed=1)[0]
        agreements["scoring"] = reference.compare_logits(text, llm.logits(text))
        agreements["batched"] = _compare(reference, _generate(llm))
        if description.get("kv_is_paged", True):
            outputs = _generate(llm)
            assert any(output.num_cached_tokens for output in outputs), "no prefix was found"
            agreements["prefix cache"] = _compare(reference, outputs)
    with _llm(folder, max_num_batched_tokens=24, enable_prefix_caching=False) as llm:
        chunked = reference.compare_logits(text, llm.logits(text))
        agreements["chunked"] = chunked + _compare(reference, _generate(llm))
    num_pages = 6 * int(description["num_kv_groups"])  # type: ignore[call-overload]
    with _llm(folder, num_kv_pages=num_pages, enable_prefix_caching=False) as llm:
        outputs = _generate(llm, (14, 13, 12, 11), _GROWING_TOKENS)
        assert llm.engine.stats.num_preemptions, "nothing was preempted"
        agreements["preemption"] = _compare(reference, outputs)
    return Proof(case, description, agreements)


def _llm(folder: Path, **options: Any) -> LLM:
    return LLM(
        str(folder),
        dtype="float32",
        device="cpu",
        max_num_seqs=8,
        skip_tokenizer_init=True,
        check_integrity=True,
        kv_cache_memory_gib=0.05,
        **options,
    )


def _texts(lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, 320, (n,), generator=generator).tolist() for n in lengths]


def _generate(
    llm: LLM, lengths: tuple[int, ...] = _PROMPT_LENGTHS, max_tokens: int = _MAX_TOKENS
) -> list[RequestOutput]:
    """Sample, so that small random models do not repeat one token."""
    params = [
        SamplingParams(temperature=1.0, seed=i, max_tokens=max_tokens, logprobs=1, ignore_eos=True)
        for i in range(len(lengths))
    ]
    return llm.generate(list(_texts(lengths)), params, use_tqdm=False)


def _compare(reference: Reference, outputs: list[RequestOutput]) -> Agreement:
    first, *others = map(reference.compare_output, outputs)
    return sum(others, first)
