"""The engine: requests in, one step at a time, outputs out.

    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=8))
    while engine.has_unfinished:
        for output in engine.step():
            ...

A step is: schedule -> swap copies -> model -> sample (verify guesses) -> commit. The engine is
single-threaded and holds no lock; whoever shares it between threads must.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from infopt.cache.manager import CacheManager
from infopt.cache.quantized_pages import PageNeed
from infopt.config import EngineConfig
from infopt.engine.admission import RequestChecker
from infopt.engine.clock import Clock
from infopt.engine.constraint import ConstraintFactory
from infopt.engine.detokenizer import Detokenizer
from infopt.engine.draft_control import DraftControl, StepOutcome
from infopt.engine.draft_stats import DraftStats
from infopt.engine.drafting import Drafter, HiddenObserver, model_drafter
from infopt.engine.eviction import Evictor
from infopt.engine.eviction_request import EvictionPlanner, default_eviction
from infopt.engine.expert_counts import ExpertCounts
from infopt.engine.logprobs import with_text
from infopt.engine.observer import StepObserver, step_shares
from infopt.engine.rejection import choose
from infopt.engine.request import Request
from infopt.engine.runner import ModelRunner
from infopt.engine.sampler import SamplingRow, derive_seed, position_logprobs
from infopt.engine.scheduler import ScheduledSequence, Scheduler, StepPlan
from infopt.engine.sequence import Sequence
from infopt.engine.stats import EngineStats, StepStats, StepTimer, count_step
from infopt.engine.verification import StepTokens, wanted_rows
from infopt.errors import CapacityError, PromptError, QueueFullError, SamplingParamsError
from infopt.models.config import ModelConfig
from infopt.models.decoder import Decoder
from infopt.models.tokenizer import Tokenizer
from infopt.outputs import FinishReason, PositionLogprobs, RequestMetrics, RequestOutput
from infopt.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is put together from (see `infopt.engine.loader.build_engine`).

    Attributes:
        runner: Runs the model.
        cache: Pages.
        checker: Limits that requests are checked against.
        num_swap_pages: Host pages for swapping, of both forms.
        tokenizer: None works on token ids alone.
        description: Facts fixed at load time, reported by ``Engine.describe``.
        drafter: Guesses tokens; None decodes one at a time.
        make_control: Makes what decides how many tokens are guessed, from the engine's clock.
    """

    runner: ModelRunner
    cache: CacheManager
    checker: RequestChecker
    num_swap_pages: PageNeed
    tokenizer: Tokenizer | None
    description: dict[str, object]
    drafter: Drafter | None = None
    make_control: Callable[[Clock], DraftControl] = DraftControl


class Engine:
    """Continuous batching over a paged cache.

    Args:
        config: How to run.
        parts: Loaded model and pages.
        clock: Source of time.
    """

    def __init__(self, config: EngineConfig, parts: EngineParts, clock: Clock) -> None:
        """Start idle."""
        self.config, self.clock, self.tokenizer = config, clock, parts.tokenizer
        self.runner, self.cache, self.checker = parts.runner, parts.cache, parts.checker
        control, swap = parts.make_control(clock), parts.num_swap_pages
        self.scheduler = Scheduler(
            config,
            parts.cache,
            swap.full,
            parts.drafter,
            num_swap_quantized=swap.quantized,
            control=control,
        )
        self._model_drafter = model_drafter(parts.drafter)
        wants_hidden = self._model_drafter is not None and self._model_drafter.wants_hidden
        self.hidden_observer: HiddenObserver | None = self._model_drafter if wants_hidden else None
        """Sees the hidden states of the rows that tokens are chosen from; None costs nothing."""
        self.evictor = Evictor(
            parts.runner.model, parts.cache, parts.runner.store, parts.checker.max_model_len
        )
        self._evictions = EvictionPlanner(
            default_eviction(config),
            parts.cache,
            swap,
            is_native=isinstance(parts.runner.model, Decoder),
        )
        self.reset_stats()
        self.step_log: list[StepStats] | None = None
        self.observers: list[StepObserver] = []
        self.logit_observer: Callable[[Sequence, torch.Tensor], None] | None = None
        """Sees the raw logits of each row that a token is chosen from, ``(vocab_size,)``."""
        self._description = parts.description
        self._eos_token_ids = parts.runner.model.config.eos_token_ids
        self._taken = StepTokens()
        self._requests: dict[str, Request] = {}
        self._ended_early: dict[str, Request] = {}
        self._seeds = random.Random(config.seed)
        self._next_seq_id = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether a step has anything to do."""
        return self.scheduler.has_unfinished or bool(self._ended_early)

    @property
    def num_requests(self) -> int:
        """Requests that no step has reported as finished."""
        return len(self._requests)

    def add_request(
        self,
        request_id: str,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        arrival_s: float | None = None,
        constraint: ConstraintFactory | None = None,
    ) -> None:
        """Queue a request.

        Args:
            request_id: Unique among unfinished requests.
            prompt: Text, or token ids that are used as they are.
            params: How to sample and when to stop.
            arrival_s: When it was due, on the engine's clock (default: now).
            constraint: Makes what limits the tokens of each completion.

        Raises:
            PromptError: Empty prompt, bad ids, or an id that is in use.
            PromptTooLongError: The prompt and ``max_tokens`` do not fit ``max_model_len``.
            CapacityError: The prompt can never fit the page pool, or its rows the host memory.
            SamplingParamsError: A token id outside the vocabulary in ``logit_bias`` or stops, or
                a ``kv_eviction`` that does not exist.
            QueueFullError: ``max_num_waiting`` requests are waiting.
        """
        if not isinstance(params, SamplingParams):
            raise SamplingParamsError(
                f"sampling_params must be a SamplingParams, got {type(params).__name__}.",
                field="sampling_params",
                value=params,
                remedy="SamplingParams.from_dict reads plain data.",
            )
        if params.structured_outputs is not None and constraint is None:
            raise SamplingParamsError(
                "the engine takes a constraint, not structured_outputs.",
                field="structured_outputs",
                value=params.structured_outputs,
                remedy="LLM makes one of it, as infopt.structured.GrammarCompiler does.",
            )
        if request_id in self._requests:
            raise PromptError(
                f"request id {request_id!r} is in use.", field="request_id", value=request_id
            )
        limit = self.config.max_num_waiting
        if limit is not None and len(self.scheduler.waiting) + params.n > limit:
            raise QueueFullError(
                f"{len(self.scheduler.waiting)} requests are waiting, the limit is {limit}.",
                field="max_num_waiting",
                value=limit,
                remedy="Retry later, or raise max_num_waiting.",
            )
        eviction = self._evictions.config_for(params)
        token_ids = self._tokens_of(prompt, params)
        streamed = None
        if eviction is not None and self._model_drafter is None:  # that one counts all positions
            self.checker.check_prompt_ids(token_ids)
            streamed = self._evictions.streamed_rows(eviction, len(token_ids))
        max_tokens = self.checker.check(token_ids, params, streamed)
        states = [
            self._evictions.plan(eviction, len(token_ids), max_tokens) for _ in range(params.n)
        ]
        arrival = self.clock.now() if arrival_s is None else arrival_s
        sequences = self._fork(request_id, token_ids, params, max_tokens, arrival)
        for sequence, state in zip(sequences, states, strict=True):
            sequence.eviction = state
        if constraint is not None:
            for sequence in sequences:
                sequence.constraint = constraint()
        text = prompt if isinstance(prompt, str) else None
        detokenizers = [self._detokenizer(params) for _ in sequences]
        self._requests[request_id] = Request.create(text, sequences, detokenizers)
        for sequence in sequences:
            self.scheduler.add(sequence)
        self.stats.num_requests += 1

    def step(self) -> list[RequestOutput]:
        """Run one step.

        Returns:
            The requests that changed, each with all of its output so far. The objects are live:
            later steps update them.
        """
        changed = self._ended_early
        self._ended_early = {}
        for observer in self.observers:
            observer.step_started()
        timer = StepTimer(self.clock)
        plan = self.scheduler.schedule()
        if plan.scheduled:
            try:
                changed |= self._run(plan, timer)
            except BaseException:
                self._ended_early = changed  # not reported yet
                self._drop(plan)
                raise
        else:
            assert not self.scheduler.has_unfinished, "work is queued but nothing was scheduled"
        if self.config.check_integrity:
            self.check_integrity()
        for request_id, request in changed.items():
            if request.output.finished:
                self._requests.pop(request_id, None)
        return [request.output for request in changed.values()]

    def abort(self, request_id: str) -> bool:
        """End a request in any state; its pages are free at once.

        The next step reports it with finish reason ``abort``.

        Returns:
            False (and nothing happens) if no unfinished request has this id.
        """
        request = self._requests.get(request_id)
        if request is None or request.output.finished:
            return False
        for sequence in request.sequences:
            if not sequence.is_finished:
                self._finish(sequence, "abort")
                request.update(sequence)
        self._ended_early[request_id] = request
        return True

    def discard(self, request_id: str) -> None:
        """End a request, where it has not ended yet, and report nothing more of it."""
        self.abort(request_id)
        self._ended_early.pop(request_id, None)
        self._requests.pop(request_id, None)

    def abort_all(self) -> None:
        """End all requests and report none of them."""
        for request_id in list(self._requests):
            self.discard(request_id)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes (needed after weights change, and between measurements)."""
        self.cache.reset_prefix_cache()
        if self._model_drafter is not None:
            self._model_drafter.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Assert the invariants of queues and pages, those of a drafter included."""
        self.scheduler.check_integrity()
        if self._model_drafter is not None:
            self._model_drafter.check_integrity()

    def reset_stats(self) -> None:
        """Start counting anew."""
        self.stats = EngineStats()
        self.draft_stats = DraftStats() if self.scheduler.drafter is not None else None
        """What became of drafted tokens; None where none are drafted."""
        self.expert_counts = self._new_expert_counts()
        """Where tokens went; None without experts, or where nobody asked (``expert_stats``)."""
        self.scheduler.control.reset_counts()

    def _new_expert_counts(self) -> ExpertCounts | None:
        model = self.runner.model.config
        if not self.config.expert_stats or not isinstance(model, ModelConfig):
            return None
        return None if model.moe is None else ExpertCounts(model.moe)

    def all_logits(self, token_ids: list[int]) -> torch.Tensor:
        """Compute raw logits at every position of one sequence, in the chunks of this config.

        Runs beside queued requests, on pages of its own.

        Returns:
            float32 ``(num_tokens, vocab_size)``.

        Raises:
            CapacityError: If other requests leave too few pages.
        """
        params = SamplingParams(max_tokens=0, seed=0)  # a seed, so that none is drawn
        sequence = self._fork("logits", token_ids, params, 0, 0.0)[0]
        chunk, blocks = self.config.max_num_batched_tokens, []
        try:
            for start in range(0, len(token_ids), chunk):
                num_tokens = min(chunk, len(token_ids) - start)
                if not self.cache.allocate(sequence.cache, start + num_tokens):
                    raise CapacityError(
                        f"{len(token_ids)} tokens need more pages than other requests leave free.",
                        field="token_ids",
                        value=len(token_ids),
                        remedy="Wait for them to finish, or raise kv_cache_memory_gib.",
                    )
                plan = StepPlan([ScheduledSequence(sequence, start, num_tokens)])
                hidden = self.runner.hidden(self.runner.build(plan, list(range(num_tokens))))
                blocks.extend(self.runner.logit_blocks(hidden))
                self.cache.commit(sequence.cache, token_ids, start + num_tokens)
        finally:
            self.cache.free(sequence.cache)
        return torch.cat(blocks)

    def describe(self) -> dict[str, object]:
        """Return what was derived from the config (ops, types, pool, limits), and graph replays."""
        return {**self._description, "cuda_graphs": self.runner.describe_graphs()}

    # ---------------------------------------------------------------- adding

    def _tokens_of(self, prompt: str | list[int], params: SamplingParams) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise PromptError(
                    "a text prompt needs a tokenizer, but skip_tokenizer_init is on.",
                    field="prompt",
                    value=prompt[:40],
                    remedy="Pass token ids.",
                )
            return self.tokenizer.encode(prompt)
        if params.stop and self.tokenizer is None:
            raise PromptError(
                "stop strings need a tokenizer, but skip_tokenizer_init is on.",
                field="stop",
                value=params.stop,
                remedy="Use stop_token_ids.",
            )
        return prompt

    def _fork(
        self,
        request_id: str,
        token_ids: list[int],
        params: SamplingParams,
        max_tokens: int,
        arrival_s: float,
    ) -> list[Sequence]:
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(64)
        wants_prompt = params.prompt_logprobs is not None
        unknown: list[PositionLogprobs | None] = [None] * len(token_ids)
        sequences: list[Sequence] = []
        for index in range(params.n):
            sequence = Sequence(
                seq_id=self._next_seq_id,
                request_id=request_id,
                index=index,
                token_ids=list(token_ids),
                num_prompt_tokens=len(token_ids),
                params=params,
                seed=derive_seed(seed, index),
                max_tokens=max_tokens,
                cache=self.cache.new_sequence(),
                metrics=RequestMetrics(arrival_s=arrival_s),
                logprobs=[] if params.logprobs is not None else None,
                prompt_logprobs=unknown if wants_prompt and not index else None,
                waits_for=sequences[0] if index and self.config.enable_prefix_caching else None,
            )
            self._next_seq_id += 1
            sequences.append(sequence)
        return sequences

    def _detokenizer(self, params: SamplingParams) -> Detokenizer | None:
        if self.tokenizer is None or not params.detokenize:
            return None
        return Detokenizer(self.tokenizer, params)

    # ---------------------------------------------------------------- running

    def _run(self, plan: StepPlan, timer: StepTimer) -> dict[str, Request]:
        """Compute a plan and take its results; return the requests that changed."""
        taken = self._taken = StepTokens.of(plan)
        self._note_started(plan)
        self.runner.swap(plan)
        rows, wanted = wanted_rows(plan)
        ctx = self.runner.build(plan, rows)
        self.evictor.prepare(plan, ctx, self.stats)
        if self.expert_counts is not None:
            self.expert_counts.prepare(ctx, self.runner.device)
        timer.scheduled()
        hidden = self.runner.hidden(ctx)
        if self.hidden_observer is not None:
            self.hidden_observer.observe(wanted, hidden)
        done = 0
        for logits in self.runner.logit_blocks(hidden) if wanted else ():
            timer.forwarded()
            block = wanted[done : done + logits.shape[0]]
            done += len(block)
            self._take_logits(logits, block)
            del logits  # else the next block is made beside this one
            timer.sampled()
        timer.forwarded()
        num_kept = taken.num_kept()
        self.evictor.before_commit(plan, ctx, num_kept)
        self.scheduler.commit(plan, num_kept)
        self._end_step(plan)
        self.evictor.after_step(plan, self.stats)
        if self.expert_counts is not None:
            self.expert_counts.add_step(plan, ctx)
        timer.sampled()
        self._count(plan, len(wanted), timer)
        sequences = [item.sequence for item in plan.scheduled]
        return self._update_outputs(s for s in sequences if s in taken.new or s.is_finished)

    def _note_started(self, plan: StepPlan) -> None:
        now = self.clock.now()
        for item in plan.scheduled:
            if item.sequence.metrics.first_scheduled_s is None:
                item.sequence.metrics.first_scheduled_s = now
                self.stats.num_prompt_tokens += item.sequence.num_prompt_tokens
                self.stats.num_cached_tokens += item.sequence.num_cached_tokens

    def _take_logits(self, logits: torch.Tensor, wanted: list[tuple[Sequence, int]]) -> None:
        """Fill in prompt log-probabilities, and choose tokens until no row gives another one.

        A sequence with guesses has several rows, and each is due once the token before it is known,
        so there are as many rounds as the longest run of right guesses, plus one.
        """
        is_given = [at + 1 < s.num_prompt_tokens for s, at in wanted]
        if any(is_given):
            self._score_prompts(logits, wanted, [i for i, given in enumerate(is_given) if given])
        open_rows = [(row, *wanted[row]) for row, given in enumerate(is_given) if not given]
        while due := [(row, s) for row, s, at in open_rows if self._taken.is_due(s, at)]:
            self._sample(_rows(logits, [row for row, _ in due]), [s for _, s in due])

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

    def _sample(self, logits: torch.Tensor, sequences: list[Sequence]) -> None:
        """Choose and append the next token of each sequence from its row."""
        if self.logit_observer is not None:
            for sequence, row in zip(sequences, logits, strict=True):
                self.logit_observer(sequence, row)
        rows = [SamplingRow.of(s, self._eos_token_ids) for s in sequences]
        guesses = [self._taken.guess_of(s) for s in sequences]
        chosen = choose(logits, rows, guesses, self.runner.model.ops.draw_tokens)
        self._note_logprobs(logits, sequences, chosen)
        now = self.clock.now()
        for sequence, token_id in zip(sequences, chosen, strict=True):
            self._append(sequence, token_id, now)

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
        if self.tokenizer is None or not sequence.params.detokenize:
            return entry
        return with_text(entry, self.tokenizer)

    def _append(self, sequence: Sequence, token_id: int, now: float) -> None:
        """Add a token and note whether it ends the output; the pages are needed until commit."""
        sequence.append(token_id)
        sequence.metrics.token_times_s.append(now)
        self._taken.new.setdefault(sequence, []).append(token_id)
        self.stats.num_generated_tokens += 1
        constraint = sequence.constraint
        if constraint is not None and not constraint.accept(token_id):
            self._taken.ending[sequence] = "error"
        elif self._stops(sequence, token_id) or (constraint and constraint.is_terminated):
            self._taken.ending[sequence] = "stop"
        elif sequence.num_remaining_tokens <= 0:
            self._taken.ending[sequence] = "length"

    def _end_step(self, plan: StepPlan) -> None:
        """Note when the new tokens were there, which is when all were, and finish what ended."""
        now, taken = self.clock.now(), self._taken
        for item in plan.scheduled:
            sequence, metrics = item.sequence, item.sequence.metrics
            if new := taken.new.get(sequence):
                metrics.token_times_s[-len(new) :] = [now] * len(new)
                if metrics.first_token_s is None:
                    metrics.first_token_s = now
            elif item.is_last_chunk and not sequence.max_tokens:
                self._finish(sequence, "length")
            if sequence in taken.ending:
                self._finish(sequence, taken.ending[sequence])

    def _stops(self, sequence: Sequence, token_id: int) -> bool:
        """Show the new token and tell whether it ends the output."""
        params = sequence.params
        detokenizer = self._requests[sequence.request_id].detokenizers[sequence.index]
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

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        self.scheduler.finish(sequence)
        sequence.metrics.finished_s = self.clock.now()
        self.stats.num_finished[reason] = self.stats.num_finished.get(reason, 0) + 1

    def _drop(self, plan: StepPlan) -> None:
        """End the sequences of a step that failed; the next step reports them.

        Some may have got their last token before the failure: they keep their reason.
        """
        lost = self.scheduler.forget_copies(plan)
        sequences = [*(item.sequence for item in plan.scheduled), *lost]
        for sequence in sequences:
            if not sequence.is_finished:
                self._finish(sequence, self._taken.ending.get(sequence, "error"))
        self._ended_early |= self._update_outputs(sequences)

    def _update_outputs(self, sequences: Iterable[Sequence]) -> dict[str, Request]:
        """Bring the outputs of sequences with something new up to date."""
        changed: dict[str, Request] = {}
        for sequence in sequences:
            request = self._requests[sequence.request_id]
            request.update(sequence)
            changed[sequence.request_id] = request
        return changed

    def _count(self, plan: StepPlan, num_rows: int, timer: StepTimer) -> None:
        self.stats.num_steps += 1
        self.stats.num_preemptions += len(plan.preempted)
        outcome = self._note_drafts(plan, timer)
        if self.step_log is None and not self.observers:
            return
        step = count_step(plan, self.scheduler, num_rows, timer, outcome)
        if self.step_log is not None:
            self.step_log.append(step)
        for observer in self.observers:
            observer.step_ended(step, step_shares(plan))

    def _note_drafts(self, plan: StepPlan, timer: StepTimer) -> StepOutcome | None:
        """Count what became of guesses, and tell whoever decides about them."""
        if self.draft_stats is None:
            return None
        control = self.scheduler.control
        outcome = self._taken.outcome(plan, timer.total_s, control.take_draft_s())
        self.draft_stats.add_step(outcome)
        control.observe(outcome)
        return outcome


def _rows(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Select rows, without a copy when all are wanted."""
    return logits if len(rows) == logits.shape[0] else logits[rows]
