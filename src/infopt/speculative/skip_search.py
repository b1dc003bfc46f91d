"""Which layers a model can leave out when it guesses for itself.

For each set of layers that is tried, the whole model and the rest of it are compared where they
would be: the rest computes one token behind rows of the whole model. With alpha, the share of
places where both think most of the same token, and the cost of a guess, the share of weight bytes
that it reads, the formula of `infopt.speculative.theory` says what the set is worth. Tried are runs
of neighbouring layers of some lengths, then the best one is moved, grown and shrunk as long as that
helps. Nothing is timed, so the same model and text give the same set.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from infopt.cache.manager import SequenceCache
from infopt.engine.runner import ModelRunner
from infopt.engine.step_plan import ScheduledSequence, StepPlan
from infopt.speculative.partial import PartialModel, Tables, text_sequence
from infopt.speculative.theory import speedup

logger = logging.getLogger(__name__)

_SHARES = (0.2, 0.35, 0.5, 0.65)
_STARTS = 10


@dataclass(frozen=True, slots=True)
class SkipChoice:
    """A set of layers to leave out.

    Attributes:
        skip_layers: Their indices.
        alpha: Share of places where the whole model and the rest agree.
        cost: Share of the weight bytes that the rest reads.
        speedup: What the formula says of it.
        num_tried: Sets that were compared.
    """

    skip_layers: tuple[int, ...]
    alpha: float
    cost: float
    speedup: float
    num_tried: int


class SkipSearch:
    """Compares sets of layers on texts.

    Args:
        runner: The whole model; nothing runs on it yet, all its pages may be written.
        texts: Token ids; cut to what the pages hold.
        num_pages: Pages from 1 on that may be written.
        length: Guesses per step.
    """

    def __init__(
        self, runner: ModelRunner, texts: Sequence[Sequence[int]], num_pages: int, length: int
    ) -> None:
        """Let the whole model read the texts."""
        self._runner, self._length = runner, length
        self._size, self._num_groups = runner.layout.block_size, len(runner.layout.groups)
        per_text = num_pages // (len(texts) * self._num_groups) - 2
        # A place needs a page of its own beside those of the text.
        self._num_places = max(per_text // 2, 0)
        self._pages = iter(range(1, num_pages + 1))
        self._places: list[tuple[Sequence[int], Tables]] = []
        self._expected: list[int] = []
        for text in texts:
            self._read(text)
        self._scratch = list(self._pages)
        self._tried: dict[tuple[int, ...], SkipChoice] = {}

    @property
    def num_places(self) -> int:
        """Places that are compared."""
        return len(self._places)

    def best(self) -> SkipChoice:
        """Return the best set found."""
        num_layers = self._runner.model.config.num_layers
        for share in _SHARES:
            count = max(round(share * num_layers), 1)
            stride = max(num_layers // _STARTS, 1)
            for start in range(0, num_layers - count + 1, stride):
                self.judge(tuple(range(start, start + count)))
        found = self._best_so_far()
        while (better := self._improved(found)).speedup > found.speedup:
            found = better
        return dataclasses.replace(found, num_tried=len(self._tried))

    def judge(self, skipped: tuple[int, ...]) -> SkipChoice:
        """Compare one set."""
        if skipped not in self._tried:
            partial = PartialModel(self._runner, skipped, self._scratch)
            logits = partial.step(partial.open(self._places, 1))
            same = sum(
                a == b for a, b in zip(logits.argmax(-1).tolist(), self._expected, strict=True)
            )
            alpha = same / len(self._places)
            whole = sum(linear.num_bytes for linear in self._runner.model.linears)
            cost = partial.weight_bytes / whole
            gain = speedup(alpha, self._length, cost)
            self._tried[skipped] = SkipChoice(skipped, alpha, cost, gain, 1)
        return self._tried[skipped]

    def _best_so_far(self) -> SkipChoice:
        return max(self._tried.values(), key=lambda c: (c.speedup, -len(c.skip_layers)))

    def _improved(self, choice: SkipChoice) -> SkipChoice:
        """Return the best of a run and its neighbours: an end moved by one layer."""
        start, end = choice.skip_layers[0], choice.skip_layers[-1] + 1
        num_layers = self._runner.model.config.num_layers
        for a, b in ((start - 1, end), (start + 1, end), (start, end - 1), (start, end + 1)):
            if 0 <= a < b <= num_layers and b - a < num_layers:
                self.judge(tuple(range(a, b)))
        return self._best_so_far()

    def _read(self, text: Sequence[int]) -> None:
        """Compute a text, and note a place at the start of each of its pages but the first."""
        num_places = min(self._num_places, (len(text) - 1) // self._size)
        num_tokens = num_places * self._size + 1
        if not num_places:
            return
        tables = [
            [next(self._pages) for _ in range(num_places + 1)] for _ in range(self._num_groups)
        ]
        sequence = text_sequence(text[:num_tokens], SequenceCache(tables))
        rows = [place * self._size for place in range(1, num_places + 1)]
        plan = StepPlan([ScheduledSequence(sequence, 0, num_tokens)])
        hidden = self._runner.hidden(self._runner.build(plan, rows))
        for block in self._runner.logit_blocks(hidden):
            self._expected.extend(block.argmax(-1).tolist())
        for row in rows:
            kept = row // self._size
            self._places.append((text[: row + 1], [table[:kept] for table in tables]))


def cached_choice(
    folder: Path, facts: dict[str, object], search: Callable[[], SkipChoice]
) -> SkipChoice:
    """Return the choice that is kept for a model, or search and keep it.

    Args:
        folder: The cache folder.
        facts: Everything that the choice depends on.
        search: Makes it.
    """
    text = json.dumps(facts, sort_keys=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
    if path.is_file():
        values = json.loads(path.read_text("utf-8"))["choice"]
        return SkipChoice(**{**values, "skip_layers": tuple(values["skip_layers"])})
    logger.info("looking for the layers that can be left out")
    choice = search()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{id(choice)}.tmp")
    partial.write_text(
        json.dumps({"facts": facts, "choice": dataclasses.asdict(choice)}, indent=2), "utf-8"
    )
    partial.replace(path)
    return choice


def random_text(vocab_size: int, num_tokens: int) -> list[int]:
    """Return ids for a model without a tokenizer."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size, (num_tokens,), generator=generator).tolist()
