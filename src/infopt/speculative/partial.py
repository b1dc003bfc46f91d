"""A model that skips some of its layers, on its own pages.

The layers that are kept find the rows that the whole model wrote for all tokens before the newest.
What they write themselves, for the newest token and for guesses, goes where nobody reads it: into
free places of an output's last page, and into pages that belong to no pool. The whole model writes
those rows again when it verifies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from infopt.cache.manager import SequenceCache
from infopt.engine.runner import ModelRunner
from infopt.engine.sequence import Sequence as EngineSequence
from infopt.engine.step_plan import ScheduledSequence, StepPlan
from infopt.outputs import RequestMetrics
from infopt.sampling_params import SamplingParams

Tables = Sequence[Sequence[int]]
"""Per KV group, pages by position // block_size."""


class PartialModel:
    """Computes single tokens behind texts that the whole model has read.

    Args:
        runner: The whole model.
        skipped: Layers to leave out.
        pages: Pages that may be written.
    """

    def __init__(self, runner: ModelRunner, skipped: Collection[int], pages: Sequence[int]) -> None:
        """Bind the layers that are left to their pages."""
        kept = [i for i in range(runner.model.config.num_layers) if i not in skipped]
        model, self._size = runner.model.without_layers(skipped), runner.layout.block_size
        self._runner = ModelRunner(model, runner.store, runner.layout, kept)
        self._scratch = pages

    @property
    def weight_bytes(self) -> int:
        """Bytes that a guess reads."""
        return sum(linear.num_bytes for linear in self._runner.model.linears)

    def open(
        self, texts: Sequence[tuple[Sequence[int], Tables]], num_rows: int
    ) -> list[EngineSequence]:
        """Continue texts by up to ``num_rows`` rows each, the newest token's included.

        Args:
            texts: Tokens, and where the rows of all but the newest are.
            num_rows: Rows.
        """
        pages = iter(self._scratch)
        return [self._open(*text, num_rows, pages) for text in texts]

    def step(self, sequences: Sequence[EngineSequence]) -> torch.Tensor:
        """Compute the newest token of each; return what follows, float32 ``(num, vocab_size)``."""
        items = [ScheduledSequence(s, len(s.token_ids) - 1, 1) for s in sequences]
        ctx = self._runner.build(StepPlan(items), list(range(len(items))))
        return self._runner.model.logits(self._runner.hidden(ctx))

    def _open(
        self, token_ids: Sequence[int], tables: Tables, num_rows: int, pages: Iterator[int]
    ) -> EngineSequence:
        num_pages = -(-(len(token_ids) - 1 + num_rows) // self._size)
        extended = [
            [*table, *(next(pages) for _ in range(num_pages - len(table)))] for table in tables
        ]
        return text_sequence(token_ids, SequenceCache(extended))


def text_sequence(token_ids: Sequence[int], cache: SequenceCache) -> EngineSequence:
    """Return what the runner needs of a text."""
    return EngineSequence(
        seq_id=0,
        request_id="draft",
        index=0,
        token_ids=list(token_ids),
        num_prompt_tokens=0,
        params=SamplingParams(),
        seed=0,
        max_tokens=0,
        cache=cache,
        metrics=RequestMetrics(arrival_s=0.0),
    )
