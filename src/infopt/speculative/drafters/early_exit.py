"""The model guesses for itself: some of its layers are left out (see `infopt.speculative.partial`).

The idea is that of self-speculative decoding (arXiv 2309.08168): nothing is trained, no memory is
needed, and a guess costs the layers that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from infopt.corpus import text as corpus_text
from infopt.engine.drafting import Draft, Drafter, DraftRequest, DraftTarget
from infopt.engine.open_drafts import DraftVocabulary, draft_rounds, open_drafts
from infopt.errors import ConfigError, DraftModelError
from infopt.speculative.config import (
    ACCEPTANCE,
    DRAFTERS,
    MAX_DRAFT_TOKENS,
    check_choice,
    check_count,
    need_target,
)
from infopt.speculative.partial import PartialModel
from infopt.speculative.skip_search import SkipChoice, SkipSearch, cached_choice, random_text
from infopt.user_cache import cache_dir

if TYPE_CHECKING:
    from infopt.config import EngineConfig
    from infopt.engine.runner import ModelRunner
    from infopt.engine.sequence import Sequence as EngineSequence

_TEXT_TOKENS = 513
_TEXT_CHARS = 4000


@DRAFTERS.register("early_exit")
@dataclass(frozen=True, slots=True)
class EarlyExitOptions:
    """Options of ``{"method": "early_exit"}``.

    Attributes:
        num_speculative_tokens: Most guesses per step.
        skip_layers: Layers to leave out; None looks for them once per model and keeps the answer
            in the cache folder.
        acceptance: How guesses of sampled outputs are judged (``ratio`` or ``equal``).
    """

    num_speculative_tokens: int = 3
    skip_layers: Sequence[int] | None = None
    acceptance: str = "ratio"

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: Names option, value and range.
        """
        check_count("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFT_TOKENS)
        check_choice("acceptance", self.acceptance, ACCEPTANCE)
        layers = self.skip_layers
        if layers is not None and not _are_layers(layers):
            raise ConfigError(
                f"speculative: skip_layers must be a list of layer indices, got {layers!r}.",
                field="speculative.skip_layers",
                value=layers,
                remedy="Leave it out to have them looked for.",
            )

    def build(self, target: DraftTarget | None = None) -> Drafter:
        """Return the drafter.

        Raises:
            DraftModelError: The model does not have the layers, or would have none left.
        """
        return EarlyExit(self, need_target("early_exit", target))


def _are_layers(layers: object) -> bool:
    return (
        isinstance(layers, list | tuple)
        and bool(layers)
        and all(type(layer) is int and layer >= 0 for layer in layers)
        and len(set(layers)) == len(layers)
    )


class EarlyExit:
    """A drafter that is a part of the model.

    Args:
        options: Which part.
        target: The model.
    """

    kv_bytes_per_token = 0.0
    wants_hidden = False

    def __init__(self, options: EarlyExitOptions, target: DraftTarget) -> None:
        """Check the layers; the part is made with :meth:`attach`."""
        _check_pages(target.config)
        self.max_tokens = self.num_scratch_tokens = options.num_speculative_tokens
        self._target, config = target, target.model.config
        self._skipped = options.skip_layers
        self._is_coupled = options.acceptance == "equal"
        self._vocabulary = DraftVocabulary(config.vocab_size, config.num_real_tokens)
        _check_layers(options.skip_layers, config.num_layers)

    def attach(self, runner: ModelRunner, num_pages: int, num_tokens: int) -> None:
        """Choose the layers, and bind those that are left."""
        del num_tokens
        pages = range(num_pages + 1, runner.store.buffer.shape[0])
        self._choice = None if self._skipped is not None else self._search(runner, num_pages)
        skipped = self._skipped if self._choice is None else self._choice.skip_layers
        assert skipped is not None
        self.skip_layers = tuple(skipped)
        self._model = PartialModel(runner, self.skip_layers, pages)

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return the guesses for each request; none where rows of its pages were evicted.

        What is left of those lies elsewhere in each layer, and this part of the model reads rows by
        their positions.
        """
        whole = [r for r in requests if _keeps_all_rows(r)]
        made = iter(self._propose(whole)) if whole else iter(())
        return [next(made) if _keeps_all_rows(r) else Draft(()) for r in requests]

    def _propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        texts = [(r.token_ids, _tables(r)) for r in requests]
        sequences = self._model.open(texts, self.max_tokens)
        eos = self._target.model.config.eos_token_ids
        with open_drafts(requests, eos, self._is_coupled) as drafts:

            def step(places: list[int]) -> torch.Tensor:
                for place in places:
                    sequences[place].token_ids.append(drafts[place].token_ids[-1])
                return self._model.step([sequences[place] for place in places])

            draft_rounds(drafts, self._model.step(sequences), step, self._vocabulary)
            return [draft.result() for draft in drafts]

    def forget(self, seq_id: int) -> None:
        """Remember nothing."""

    def observe(self, rows: list[tuple[EngineSequence, int]], hidden: torch.Tensor) -> None:
        """Look at nothing."""

    def reset_prefix_cache(self) -> None:
        """Keep no prefix."""

    def describe(self) -> dict[str, Any]:
        """Return which layers are left out, and how they were chosen."""
        return {
            "skip_layers": list(self.skip_layers),
            "search": None if self._choice is None else asdict(self._choice),
            "weights_bytes": self._model.weight_bytes,
            "kv_bytes_per_token": 0.0,
        }

    def check_integrity(self) -> None:
        """Keep no invariant."""

    def _search(self, runner: ModelRunner, num_pages: int) -> SkipChoice:
        target, model = self._target, runner.model
        facts = {
            "model": target.identity,
            "quantization": target.config.quantization,
            "dtype": str(model.dtype),
            "has_tokenizer": target.tokenizer is not None,
            "num_speculative_tokens": self.max_tokens,
            "block_size": runner.layout.block_size,
            "num_pages": num_pages if num_pages < 1024 else None,
            "max_model_len": min(target.max_model_len, _TEXT_TOKENS),
        }
        return cached_choice(
            cache_dir() / "early_exit", facts, lambda: self._searched(runner, num_pages)
        )

    def _searched(self, runner: ModelRunner, num_pages: int) -> SkipChoice:
        search = SkipSearch(runner, _texts(self._target), num_pages, self.max_tokens)
        if not search.num_places:
            raise DraftModelError(
                f"speculative: {num_pages} pages are too few to find out which layers can be left "
                "out.",
                field="speculative.skip_layers",
                value=num_pages,
                remedy="Name skip_layers, or raise kv_cache_memory_gib.",
            )
        return search.best()


def _keeps_all_rows(request: DraftRequest) -> bool:
    return request.sequence is None or request.sequence.eviction is None


def _tables(request: DraftRequest) -> list[list[int]]:
    assert request.sequence is not None
    return request.sequence.cache.tables


def _texts(target: DraftTarget) -> list[list[int]]:
    """Return documentation and code as token ids, at most as long as the model reads."""
    count = min(_TEXT_TOKENS, target.max_model_len)
    if target.tokenizer is None:
        return [random_text(target.model.config.num_real_tokens, count)]
    texts = (corpus_text(kind, "train")[:_TEXT_CHARS] for kind in ("docs", "code"))
    return [target.tokenizer.encode(text)[:count] for text in texts]


def _check_pages(config: EngineConfig) -> None:
    """Refuse pages that a part of the model would quantize before the whole has written them."""
    if config.kv_cache_dtype != "auto":
        raise ConfigError(
            f"speculative: early_exit reads the model's own pages, which it cannot with "
            f"kv_cache_dtype={config.kv_cache_dtype!r}.",
            field="speculative.method",
            value="early_exit",
            remedy="Use kv_cache_dtype='auto', or another method.",
        )


def _check_layers(layers: Sequence[int] | None, num_layers: int) -> None:
    if layers is None and num_layers > 1:
        return
    if layers is None or max(layers) >= num_layers or len(layers) >= num_layers:
        raise DraftModelError(
            f"speculative: skip_layers={layers!r} does not leave a part of a model with "
            f"{num_layers} layers.",
            field="speculative.skip_layers",
            value=layers,
            remedy=f"Name some of 0 .. {num_layers - 1}, not all.",
        )
