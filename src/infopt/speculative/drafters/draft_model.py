"""A smaller model with the same tokens guesses, with keys and values of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from infopt.cache.groups import plan_layout
from infopt.cache.manager import CacheManager
from infopt.cache.pages import PageStore
from infopt.engine.drafting import Draft, Drafter, DraftRequest, DraftTarget
from infopt.engine.loader import use_graphs
from infopt.engine.open_drafts import DraftVocabulary, draft_rounds, open_drafts
from infopt.engine.runner import ModelRunner
from infopt.engine.step_plan import ScheduledSequence, StepPlan
from infopt.engine.weights import LoadedModel, load_model
from infopt.ops import resolve_ops
from infopt.speculative.config import (
    ACCEPTANCE,
    DRAFTERS,
    MAX_DRAFT_TOKENS,
    check_choice,
    check_count,
    check_text,
    need_target,
)
from infopt.speculative.draft_cache import DraftCache, DraftText
from infopt.speculative.vocabulary import check_vocabulary

if TYPE_CHECKING:
    from infopt.engine.sequence import Sequence as EngineSequence


@DRAFTERS.register("draft_model")
@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Options of ``{"method": "draft_model", "model": ...}``.

    Attributes:
        model: The draft model: registry slug, checkpoint folder or GGUF file.
        num_speculative_tokens: Most guesses per step.
        quantization: Its weight scheme.
        acceptance: How guesses of sampled outputs are judged (``ratio`` or ``equal``).
    """

    model: str = ""
    num_speculative_tokens: int = 5
    quantization: str = "none"
    acceptance: str = "ratio"

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: Names option, value and range.
        """
        check_text("model", self.model, "Name a small model with the same tokenizer.")
        check_count("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFT_TOKENS)
        check_text("quantization", self.quantization, "Use 'none' for the stored weights.")
        check_choice("acceptance", self.acceptance, ACCEPTANCE)

    def build(self, target: DraftTarget | None = None) -> Drafter:
        """Load the draft model and return the drafter.

        Raises:
            DraftModelError: Its tokens are not those of the target.
        """
        return DraftModel(self, need_target("draft_model", target))


class DraftModel:
    """A drafter that decodes with a model of its own, all outputs at once.

    Args:
        options: Which model.
        target: The model that is guessed for.
    """

    num_scratch_tokens = 0
    wants_hidden = False

    def __init__(self, options: DraftModelOptions, target: DraftTarget) -> None:
        """Load the model; pages come with :meth:`attach`."""
        self.max_tokens = options.num_speculative_tokens
        self._is_coupled = options.acceptance == "equal"
        self._target = target.model.config
        # Its rows are few and stay as they are, however the model keeps its own.
        self._config = target.config.replace(kv_cache_dtype="auto")
        self._vocabulary = DraftVocabulary(self._target.vocab_size, self._target.num_real_tokens)
        self._loaded = _load(options, target)
        model = self._loaded.model
        self._layout = plan_layout(
            model.config,
            target.config.block_size,
            model.dtype.itemsize,
            self._loaded.max_model_len,
        )
        self.kv_bytes_per_token = self._layout.bytes_per_token

    def attach(self, runner: ModelRunner, num_pages: int, num_tokens: int) -> None:
        """Make pages for as many tokens as the model's pools hold."""
        config, model = self._config, self._loaded.model
        per_group = max(num_tokens // config.block_size, 1)
        num_pages = per_group * len(self._layout.groups)
        store = PageStore(self._layout, num_pages, 0, model.dtype, runner.device)
        self._runner = ModelRunner(model, store, self._layout)
        use_graphs(self._runner, config, self._loaded.max_model_len)
        cache = CacheManager(self._layout, num_pages, {"draft": True}, config.enable_prefix_caching)
        self.texts = DraftCache(cache)

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return the guesses for each request; none where its text or pages find no room."""
        active = {request.seq_id for request in requests}
        texts = [self._prepare(request, active) for request in requests]
        ready = [request for request, text in zip(requests, texts, strict=True) if text]
        try:
            found = iter(self._draft(ready, [text for text in texts if text]))
        except BaseException:
            for request in ready:  # nobody knows which of their rows were written
                self.forget(request.seq_id)
            raise
        return [next(found) if text else Draft([]) for text in texts]

    def forget(self, seq_id: int) -> None:
        """Free the pages of an output."""
        self.texts.forget(seq_id)

    def observe(self, rows: list[tuple[EngineSequence, int]], hidden: torch.Tensor) -> None:
        """Look at nothing."""

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes."""
        self.texts.cache.reset_prefix_cache()

    def describe(self) -> dict[str, Any]:
        """Return facts about the model and its pages."""
        store, model = self._runner.store, self._loaded.model
        return {
            "model_identity": self._loaded.identity,
            "quantization": self._loaded.quantization,
            "ops": model.describe_ops(),
            "weights_bytes": model.weight_bytes,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_pool_bytes": store.num_bytes,
            "num_kv_pages": self.texts.cache.pool.num_pages,
            "max_model_len": self._loaded.max_model_len,
        }

    def check_integrity(self) -> None:
        """Assert the invariants of the pages."""
        self.texts.cache.check_integrity()
        if not self.texts.num_texts:
            assert self.texts.cache.pool.num_used == 0, "pages of a forgotten output"

    def _prepare(self, request: DraftRequest, active: set[int]) -> DraftText | None:
        longest = len(request.token_ids) + request.max_tokens - 1
        return None if longest > self._loaded.max_model_len else self.texts.prepare(request, active)

    def _draft(self, requests: list[DraftRequest], texts: list[DraftText]) -> list[Draft]:
        if not requests:
            return []
        eos = self._target.eos_token_ids
        with open_drafts(requests, eos, self._is_coupled) as drafts:

            def step(places: list[int]) -> torch.Tensor:
                for place in places:
                    texts[place].sequence.token_ids.append(drafts[place].token_ids[-1])
                return self._forward([texts[place] for place in places])

            draft_rounds(drafts, self._forward(texts), step, self._vocabulary)
            return [draft.result() for draft in drafts]

    def _forward(self, texts: list[DraftText]) -> torch.Tensor:
        """Compute the rows that texts lack; return what follows each, ``(num_texts, vocab)``."""
        logits: dict[int, torch.Tensor] = {}
        while len(logits) < len(texts):
            items = self._next_chunk([t for t in texts if t.sequence.seq_id not in logits])
            ending = [item for item in items if item.is_last_chunk]
            ends = dict(zip(items, _ends(items), strict=True))
            ctx = self._runner.build(StepPlan(items), [ends[item] for item in ending])
            rows = self._runner.model.logits(self._runner.hidden(ctx))
            logits |= {i.sequence.seq_id: row for i, row in zip(ending, rows, strict=True)}
        return torch.stack([logits[text.sequence.seq_id] for text in texts])

    def _next_chunk(self, texts: list[DraftText]) -> list[ScheduledSequence]:
        """Plan at most ``max_num_batched_tokens`` tokens, single ones first."""
        budget, items = self._config.max_num_batched_tokens, []
        for text in sorted(texts, key=lambda t: len(t.sequence.token_ids) - t.num_written):
            start = text.num_written
            count = min(len(text.sequence.token_ids) - start, budget)
            if not count:
                break
            items.append(ScheduledSequence(text.sequence, start, count))
            text.num_written += count
            budget -= count
        return items


def _ends(items: list[ScheduledSequence]) -> list[int]:
    """Return the place of each item's last token in the flat batch."""
    ends, end = [], 0
    for item in items:
        end += item.num_tokens
        ends.append(end - 1)
    return ends


def _load(options: DraftModelOptions, target: DraftTarget) -> LoadedModel:
    """Load the draft model on the target's device and in its type."""
    model, config = target.model, target.config
    ops = resolve_ops(config.backend, model.device, model.dtype, block_size=config.block_size)
    asked = config.replace(
        model=options.model,
        quantization=options.quantization,
        calibration=None,
        speculative=None,
        max_model_len=None,
    )
    loaded = load_model(asked, ops, model.device, model.dtype)
    check_vocabulary(loaded, target)
    return loaded
