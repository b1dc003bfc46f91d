"""Keys and values of a draft model: per output, the rows of its text so far, and of guesses."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from infopt.cache.manager import CacheManager
from infopt.engine.drafting import DraftRequest
from infopt.engine.sequence import Sequence as EngineSequence
from infopt.outputs import RequestMetrics
from infopt.sampling_params import SamplingParams


class DraftText:
    """One output as the draft model sees it.

    The rows of ``sequence.token_ids[:num_written]`` are stored; behind the known text they are
    those of guesses, which stay where the guesses were right.

    Attributes:
        sequence: Tokens and block tables.
        num_written: Tokens whose rows are stored.
        num_known: Leading tokens that were part of the output when it was last seen.
    """

    def __init__(self, seq_id: int, cache: CacheManager) -> None:
        """Start with nothing stored."""
        self.sequence = EngineSequence(
            seq_id=seq_id,
            request_id="draft",
            index=0,
            token_ids=[],
            num_prompt_tokens=0,
            params=SamplingParams(),
            seed=0,
            max_tokens=0,
            cache=cache.new_sequence(),
            metrics=RequestMetrics(arrival_s=0.0),
        )
        self.num_written = self.num_known = 0

    def follow(self, token_ids: Sequence[int]) -> int:
        """Take in how the output went on; return how many leading rows are still right."""
        own, right = self.sequence.token_ids, self.num_known
        end = min(self.num_written, len(token_ids))
        while right < end and own[right] == token_ids[right]:
            right += 1
        right = min(right, end)
        own[right:] = token_ids[right:]
        self.num_known = len(token_ids)
        return right


class DraftCache:
    """Texts of all outputs over the draft model's pages.

    Args:
        cache: Its pages.
    """

    def __init__(self, cache: CacheManager) -> None:
        """Start empty."""
        self.cache = cache
        self._texts: dict[int, DraftText] = {}

    @property
    def num_texts(self) -> int:
        """Outputs that something is kept of."""
        return len(self._texts)

    def prepare(self, request: DraftRequest, active: Collection[int]) -> DraftText | None:
        """Bring an output up to date, with room for its rows and those of its guesses.

        Rows of rejected guesses are dropped. At least the newest token is left to compute.

        Args:
            request: The output, and how many guesses are wanted.
            active: Outputs that must keep their rows; others may have to give theirs up.

        Returns:
            The text, or None where there is no room.
        """
        text = self._texts.get(request.seq_id)
        if text is None:
            text = self._texts[request.seq_id] = self._start(request)
        known = request.token_ids
        # The newest token is computed again if it was guessed right: its logits are needed.
        text.num_written = min(text.follow(known), len(known) - 1)
        self.cache.commit(text.sequence.cache, known, text.num_written)
        # The last guess is never computed.
        needed = len(known) + request.max_tokens - 1
        while not self.cache.allocate(text.sequence.cache, needed):
            if not self._give_up_one(active):
                self.forget(request.seq_id)
                return None
        return text

    def forget(self, seq_id: int) -> None:
        """Free the pages of an output; unknown ids are no error."""
        text = self._texts.pop(seq_id, None)
        if text is not None:
            self.cache.free(text.sequence.cache)

    def _start(self, request: DraftRequest) -> DraftText:
        text = DraftText(request.seq_id, self.cache)
        keys = self.cache.match_prefix(request.token_ids)
        if keys:
            text.num_written = self.cache.adopt_prefix(text.sequence.cache, keys)
            text.sequence.token_ids[:] = request.token_ids[: text.num_written]
        return text

    def _give_up_one(self, active: Collection[int]) -> bool:
        """Free the longest kept output that is not active (a preempted one, say)."""
        idle = next((seq_id for seq_id in self._texts if seq_id not in active), None)
        if idle is None:
            return False
        self.forget(idle)
        return True
