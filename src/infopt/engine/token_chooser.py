"""From the logits of a step to its tokens: prompt log-probabilities, samples, and where texts end.

Tokens become part of their sequences here. Pages and queues learn of it when the step is committed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from infopt.engine.logprobs import with_text
from infopt.engine.rejection import choose
from infopt.engine.sampler import SamplingRow, position_logprobs
from infopt.engine.sequence import Sequence
from infopt.engine.verification import StepTokens
from infopt.models.decoder import Decoder
from infopt.models.tokenizer import Tokenizer
from infopt.outputs import PositionLogprobs

LogitObserver = Callable[[Sequence, torch.Tensor], None]
"""Sees the raw logits of each row that a token is chosen from, ``(vocab_size,)``."""


class TokenChooser:
    """Chooses tokens and appends them to their sequences.

    Args:
        model: Its ops draw, its end tokens stop.
        tokenizer: Gives log-probabilities their text; None leaves ids alone.
    """

    def __init__(self, model: Decoder, tokenizer: Tokenizer | None) -> None:
        """Take what is needed; nothing is computed."""
        self._model, self._tokenizer = model, tokenizer
        self._eos_token_ids = model.config.eos_token_ids
        self.observer: LogitObserver | None = None

    def take(
        self, logits: torch.Tensor, wanted: list[tuple[Sequence, int]], taken: StepTokens
    ) -> None:
        """Fill in prompt log-probabilities, and choose tokens until no row gives another one.

        A sequence with guesses has several rows, and each is due once the token before it is known,
        so there are as many rounds as the longest run of right guesses, plus one.

        Args:
            logits: float32 ``(num_rows, vocab_size)``; not changed.
            wanted: Per row, whose it is, and its position.
            taken: Tokens of the step so far; gets the new ones.
        """
        is_given = [at + 1 < s.num_prompt_tokens for s, at in wanted]
        if any(is_given):
            self._score_prompts(logits, wanted, [i for i, given in enumerate(is_given) if given])
        open_rows = [(row, *wanted[row]) for row, given in enumerate(is_given) if not given]
        while due := [(row, s) for row, s, at in open_rows if taken.is_due(s, at)]:
            self._sample(_rows(logits, [row for row, _ in due]), [s for _, s in due], taken)

    def _score_prompts(
        self, logits: torch.Tensor, wanted: list[tuple[Sequence, int]], rows: list[int]
    ) -> None:
        """Fill in the log-probabilities of given tokens."""
        given = [wanted[row] for row in rows]
        entries = position_logprobs(
            _rows(logits, rows),
            [s.token_ids[at + 1] for s, at in given],
            [s.params.prompt_logprobs or 0 for s, _ in given],
        )
        for (sequence, at), entry in zip(given, entries, strict=True):
            assert sequence.prompt_logprobs is not None
            sequence.prompt_logprobs[at + 1] = self._decorated(sequence, entry)

    def _sample(self, logits: torch.Tensor, sequences: list[Sequence], taken: StepTokens) -> None:
        """Choose and append the next token of each sequence from its row."""
        if self.observer is not None:
            for sequence, row in zip(sequences, logits, strict=True):
                self.observer(sequence, row)
        rows = [SamplingRow.of(s, self._eos_token_ids) for s in sequences]
        guesses = [taken.guess_of(s) for s in sequences]
        chosen = choose(logits, rows, guesses, self._model.ops.draw_tokens)
        self._note_logprobs(logits, sequences, chosen)
        for sequence, token_id in zip(sequences, chosen, strict=True):
            self._append(sequence, token_id, taken)

    def _note_logprobs(
        self, logits: torch.Tensor, sequences: list[Sequence], chosen: list[int]
    ) -> None:
        rows = [i for i, s in enumerate(sequences) if s.logprobs is not None]
        if not rows:
            return
        entries = position_logprobs(
            _rows(logits, rows),
            [chosen[i] for i in rows],
            [sequences[i].params.logprobs or 0 for i in rows],
        )
        for i, entry in zip(rows, entries, strict=True):
            logprobs = sequences[i].logprobs
            assert logprobs is not None
            logprobs.append(self._decorated(sequences[i], entry))

    def _decorated(self, sequence: Sequence, entry: PositionLogprobs) -> PositionLogprobs:
        if self._tokenizer is None or not sequence.params.detokenize:
            return entry
        return with_text(entry, self._tokenizer)

    def _append(self, sequence: Sequence, token_id: int, taken: StepTokens) -> None:
        """Add a token and note whether it ends the output; the pages are needed until commit."""
        sequence.append(token_id)
        taken.new.setdefault(sequence, []).append(token_id)
        constraint = sequence.constraint
        if constraint is not None and not constraint.accept(token_id):
            taken.ending[sequence] = "error"
        elif self._stops(sequence, token_id) or (constraint and constraint.is_terminated):
            taken.ending[sequence] = "stop"
        elif sequence.num_remaining_tokens <= 0:
            taken.ending[sequence] = "length"

    def _stops(self, sequence: Sequence, token_id: int) -> bool:
        """Show the new token and tell whether it ends the output."""
        params, detokenizer = sequence.params, sequence.detokenizer
        is_stop_id = token_id in params.stop_token_ids
        if is_stop_id:
            sequence.stop_reason = token_id
        if is_stop_id or (token_id in self._eos_token_ids and not params.ignore_eos):
            if detokenizer is not None and params.include_stop_str_in_output:
                detokenizer.append(token_id, check_stops=False)
            return True
        if detokenizer is None:
            return False
        check = sequence.num_output_tokens >= params.min_tokens
        if detokenizer.append(token_id, check_stops=check):
            sequence.stop_reason = detokenizer.stop_string
            return True
        return False


def _rows(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Select rows, without a copy when all are wanted."""
    return logits if len(rows) == logits.shape[0] else logits[rows]
