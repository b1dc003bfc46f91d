"""The engine: requests in, one step at a time, outputs out.

    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=8))
    while engine.has_unfinished:
        for output in engine.step():
            ...

A step is: schedule -> swap copies -> model -> sample (verify guesses) -> commit. The engine is
single-threaded and holds no lock; whoever shares it between threads must.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from infopt.config import EngineConfig
from infopt.engine.all_logits import compute_all_logits
from infopt.engine.clock import Clock
from infopt.engine.constraint import ConstraintFactory
from infopt.engine.draft_stats import DraftStats
from infopt.engine.drafting import HiddenObserver, model_drafter
from infopt.engine.expert_counts import ExpertCounts
from infopt.engine.input_processor import InputProcessor, check_params
from infopt.engine.parts import EngineParts
from infopt.engine.request import Request
from infopt.engine.scheduler import Scheduler
from infopt.engine.sequence import Sequence
from infopt.engine.stats import EngineStats, StepStats, StepTimer
from infopt.engine.step_recorder import StepRecorder
from infopt.engine.step_runner import StepRunner
from infopt.engine.token_chooser import LogitObserver
from infopt.errors import PromptError, QueueFullError
from infopt.outputs import RequestOutput
from infopt.sampling_params import SamplingParams


class Engine:
    """Continuous batching over a paged cache.

    Args:
        config: How to run.
        parts: Loaded model and pages.
        clock: Source of time.

    Attributes:
        observers: Are told each step (`infopt.engine.observer`).
    """

    def __init__(self, config: EngineConfig, parts: EngineParts, clock: Clock) -> None:
        """Start idle."""
        self.config, self.clock, self.tokenizer = config, clock, parts.tokenizer
        self.runner, self.cache, self.checker = parts.runner, parts.cache, parts.checker
        self.scheduler = Scheduler(
            config,
            parts.cache,
            parts.num_swap_pages.full,
            parts.drafter,
            num_swap_quantized=parts.num_swap_pages.quantized,
            control=parts.make_control(clock),
        )
        self.inputs = InputProcessor(config, parts)
        self._recorder = StepRecorder(config, self.scheduler, parts.runner.model.config)
        self.observers = self._recorder.observers
        self.steps = StepRunner(parts, self.scheduler, self._recorder)
        self.evictor = self.steps.evictor
        self._model_drafter = model_drafter(parts.drafter)
        self._description = parts.description
        self._requests: dict[str, Request] = {}
        self._ended_early: dict[str, Request] = {}

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
        check_params(params, constraint)
        self._check_place(request_id, params.n)
        arrival = self.clock.now() if arrival_s is None else arrival_s
        request = self.inputs.make_request(request_id, prompt, params, arrival, constraint)
        self._requests[request_id] = request
        for sequence in request.sequences:
            self.scheduler.add(sequence)
        self.stats.num_requests += 1

    def _check_place(self, request_id: str, num_sequences: int) -> None:
        if request_id in self._requests:
            raise PromptError(
                f"request id {request_id!r} is in use.", field="request_id", value=request_id
            )
        limit, num_waiting = self.config.max_num_waiting, len(self.scheduler.waiting)
        if limit is not None and num_waiting + num_sequences > limit:
            raise QueueFullError(
                f"{num_waiting} requests are waiting, the limit is {limit}.",
                field="max_num_waiting",
                value=limit,
                remedy="Retry later, or raise max_num_waiting.",
            )

    def step(self) -> list[RequestOutput]:
        """Run one step.

        Returns:
            The requests that changed, each with all of its output so far. The objects are live:
            later steps update them.
        """
        changed = self._ended_early
        self._ended_early = {}
        self._recorder.step_started()
        timer = StepTimer(self.clock)
        plan = self.scheduler.schedule()
        if plan.scheduled:
            try:
                changed |= self._update_outputs(self.steps.run(plan, timer))
            except BaseException:
                self._ended_early = changed  # not reported yet
                dropped = self.steps.drop(plan, self.clock.now())
                self._ended_early |= self._update_outputs(dropped)
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
                self.steps.finish(sequence, "abort", self.clock.now())
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

    def all_logits(self, token_ids: list[int]) -> torch.Tensor:
        """Compute raw logits at every position of one sequence, in the chunks of this config.

        Runs beside queued requests, on pages of its own.

        Returns:
            float32 ``(num_tokens, vocab_size)``.

        Raises:
            CapacityError: If other requests leave too few pages.
        """
        params = SamplingParams(max_tokens=0, seed=0)  # a seed, so that none is drawn
        sequence = self.inputs.fork("logits", token_ids, params, 0, 0.0)[0]
        chunk = self.config.max_num_batched_tokens
        return compute_all_logits(self.runner, self.cache, sequence, chunk)

    def describe(self) -> dict[str, object]:
        """Return what was derived from the config (ops, types, pool, limits), and graph replays."""
        return {**self._description, "cuda_graphs": self.runner.describe_graphs()}

    def _update_outputs(self, sequences: Iterable[Sequence]) -> dict[str, Request]:
        """Bring the outputs of sequences with something new up to date."""
        changed: dict[str, Request] = {}
        for sequence in sequences:
            request = self._requests[sequence.request_id]
            request.update(sequence)
            changed[sequence.request_id] = request
        return changed

    # ---------------------------------------------------------------- watching

    @property
    def stats(self) -> EngineStats:
        """Totals since the start or the last `reset_stats`."""
        return self._recorder.stats

    @property
    def draft_stats(self) -> DraftStats | None:
        """What became of drafted tokens; None where none are drafted."""
        return self._recorder.draft_stats

    @property
    def expert_counts(self) -> ExpertCounts | None:
        """Where tokens went; None without experts, or where nobody asked (``expert_stats``)."""
        return self._recorder.expert_counts

    def reset_stats(self) -> None:
        """Start counting anew."""
        self._recorder.reset()

    @property
    def step_log(self) -> list[StepStats] | None:
        """Gets an entry per step; None, the default, keeps none."""
        return self._recorder.step_log

    @step_log.setter
    def step_log(self, log: list[StepStats] | None) -> None:
        self._recorder.step_log = log

    @property
    def hidden_observer(self) -> HiddenObserver | None:
        """Sees the hidden states of the rows that tokens are chosen from; None costs nothing."""
        return self.steps.hidden_observer

    @hidden_observer.setter
    def hidden_observer(self, observer: HiddenObserver | None) -> None:
        self.steps.hidden_observer = observer

    @property
    def logit_observer(self) -> LogitObserver | None:
        """Sees the raw logits of each row that a token is chosen from, ``(vocab_size,)``."""
        return self.steps.chooser.observer

    @logit_observer.setter
    def logit_observer(self, observer: LogitObserver | None) -> None:
        self.steps.chooser.observer = observer
