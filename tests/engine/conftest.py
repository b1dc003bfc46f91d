"""A scheduler without a model: every slot of the cache remembers what was written into it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infopt import LLM
from infopt.cache.block_pool import NULL_PAGE
from infopt.cache.groups import KVGroup, KVLayout
from infopt.cache.manager import CacheManager
from infopt.config import EngineConfig
from infopt.engine.drafting import DraftRequest
from infopt.engine.scheduler import Scheduler
from infopt.engine.sequence import Sequence, SequenceStatus
from infopt.engine.step_plan import ScheduledSequence, StepPlan
from infopt.outputs import RequestMetrics
from infopt.sampling_params import SamplingParams

EOS = 0


class Simulation:
    """Drives a `Scheduler` as the engine does and checks every step.

    The "model" hashes the whole context, read back from the pages, into the next token: a wrong
    page, position or copy changes the output. Token 0 ends a sequence.
    """

    def __init__(
        self,
        *windows: int | None,
        num_pages: int = 100,
        num_swap_pages: int = 0,
        block_size: int = 4,
        vocab_size: int = 50,
        num_drafts: int = 0,
        **options: Any,
    ) -> None:
        options = {"max_num_seqs": 8, "max_num_batched_tokens": 32} | options
        self.config = EngineConfig(model="none", **options)
        groups = tuple(KVGroup((i,), window) for i, window in enumerate(windows or (None,)))
        self.layout = KVLayout(groups, 1, block_size, 1, 1, 4)
        self.cache = CacheManager(
            self.layout, num_pages, {}, enable_prefix_caching=self.config.enable_prefix_caching
        )
        self.drafter = Guesser(self, num_drafts) if num_drafts else None
        self.scheduler = Scheduler(self.config, self.cache, num_swap_pages, self.drafter)
        self.num_swap_pages, self.vocab_size = num_swap_pages, vocab_size
        self.sequences: list[Sequence] = []
        self.plans: list[StepPlan] = []
        self._slots: dict[tuple[int, int], object] = {}
        self._host: dict[tuple[int, int], object] = {}

    def add(
        self, prompt: list[int], max_tokens: int = 8, *, n: int = 1, ignore_eos: bool = True
    ) -> list[Sequence]:
        """Queue a prompt with ``n`` completions."""
        params = SamplingParams(n=n, max_tokens=max_tokens, ignore_eos=ignore_eos)
        made: list[Sequence] = []
        for index in range(n):
            sequence = Sequence(
                seq_id=len(self.sequences),
                request_id=str(len(self.sequences) - index),
                index=index,
                token_ids=list(prompt),
                num_prompt_tokens=len(prompt),
                params=params,
                seed=index,
                max_tokens=max_tokens,
                cache=self.cache.new_sequence(),
                metrics=RequestMetrics(arrival_s=0.0),
                waits_for=made[0] if index and self.config.enable_prefix_caching else None,
            )
            made.append(sequence)
            self.sequences.append(sequence)
            self.scheduler.add(sequence)
        return made

    def abort(self, sequence: Sequence) -> None:
        """End a sequence in any state."""
        sequence.finish_reason = "abort"
        self.scheduler.finish(sequence)
        self.scheduler.check_integrity()

    def step(self, fails: Callable[[StepPlan], object] = lambda plan: False) -> StepPlan:
        """Run one step; where ``fails(plan)`` holds the model raises."""
        running = [(s, s.is_decoding) for s in self.scheduler.running]
        plan = self.scheduler.schedule()
        self._check_plan(plan, dict(running))
        if fails(plan):
            self.scheduler.forget_copies(plan)
            for item in plan.scheduled:
                item.sequence.finish_reason = "error"
                self.scheduler.finish(item.sequence)
        else:
            kept = {s: self._append(s, tokens) for s, tokens in self._compute(plan).items()}
            self.scheduler.commit(plan, kept)
            for sequence in kept:
                if sequence.finish_reason:
                    self.scheduler.finish(sequence)
        self.scheduler.check_integrity()
        self.plans.append(plan)
        return plan

    def run(self, max_steps: int = 2000) -> None:
        """Step until everything is finished, then check that nothing is left behind."""
        self.run_until(lambda: not self.scheduler.has_unfinished, max_steps)
        self.check_idle()

    def run_until(self, reached: Callable[[], Any], max_steps: int = 500) -> None:
        """Step until something holds."""
        for _ in range(max_steps):
            if reached():
                return
            assert self.step().scheduled, "a step did nothing"
        raise AssertionError("too many steps")

    def check_idle(self) -> None:
        """Assert that all sequences ended and gave everything back."""
        assert not self.scheduler.has_unfinished, "a sequence starves"
        assert all(s.status is SequenceStatus.FINISHED for s in self.sequences)
        assert all(s.finish_reason for s in self.sequences)
        assert not self.drafter or not self.drafter.known, "something is remembered for ever"
        pool = self.cache.pool
        assert pool.num_free + pool.num_cached == pool.num_pages
        assert len(set(self.scheduler.swap.full.free)) == self.num_swap_pages
        assert len(self.scheduler.swap.full.free) == self.num_swap_pages

    def check_outputs(self) -> None:
        """Assert that each sequence holds what it would hold alone."""
        for s in self.sequences:
            assert s.output_token_ids == self.expected(s)[: s.num_output_tokens]
            if s.finish_reason in ("stop", "length"):
                assert s.output_token_ids == self.expected(s)

    def expected(self, sequence: Sequence) -> list[int]:
        """What the model makes of a prompt."""
        tokens, output = sequence.token_ids[: sequence.num_prompt_tokens], []
        while len(output) < sequence.max_tokens:
            output.append(self._next_token(_contexts([*tokens, *output])[-1], sequence))
            if output[-1] == EOS and not sequence.params.ignore_eos:
                break
        return output

    def _next_token(self, context: int, sequence: Sequence) -> int:
        return hash((context, sequence.seed)) % self.vocab_size

    def _append(self, sequence: Sequence, tokens: list[int]) -> int:
        """Append tokens until the output ends; return how many of them have keys already."""
        for count, token in enumerate(tokens):
            sequence.append(token)
            if token == EOS and not sequence.params.ignore_eos:
                sequence.finish_reason = "stop"
            elif not sequence.num_remaining_tokens:
                sequence.finish_reason = "length"
            if sequence.finish_reason:
                return count
        return len(tokens) - 1

    def _check_plan(self, plan: StepPlan, was_decoding: dict[Sequence, bool]) -> None:
        """Check a plan against the limits and against what was running before."""
        waiting = [s.seq_id for s in self.scheduler.waiting]
        assert waiting == sorted(waiting), "the queue is not in order of arrival"
        config, scheduled = self.config, [item.sequence for item in plan.scheduled]
        assert plan.num_tokens <= config.max_num_batched_tokens
        assert len(scheduled) == len(set(scheduled)) <= config.max_num_seqs
        assert len(self.scheduler.running) <= config.max_num_seqs
        assert set(scheduled) <= set(self.scheduler.running)
        assert not set(scheduled) & set(plan.preempted)
        decoding = {sequence for sequence, decodes in was_decoding.items() if decodes}
        assert decoding <= {*scheduled, *plan.preempted}, "a decode was left out"
        assert not plan.preempted or set(scheduled) <= set(was_decoding), "admitted and preempted"
        singles = [item.num_tokens == 1 for item in plan.scheduled]
        assert singles == sorted(singles, reverse=True), "single tokens come first"
        for item in plan.scheduled:
            cache = item.sequence.cache
            assert item.start == cache.num_tokens
            assert 1 <= item.num_known_tokens <= item.sequence.num_pending
            assert not item.draft or item.is_last_chunk
            assert item.start + item.num_tokens < item.sequence.num_prompt_tokens + max(
                item.sequence.max_tokens, 1
            ), "a guess behind the last token"
            size = self.layout.block_size
            assert all(len(t) * size >= item.start + item.num_tokens for t in cache.tables)

    def _compute(self, plan: StepPlan) -> dict[Sequence, list[int]]:
        """Copy, write all keys, then read them: as a batched model does."""
        size = range(self.layout.block_size)
        for page, host in plan.swap_out:
            self._host |= {(host, i): self._slots.get((page, i)) for i in size}
        for host, page in plan.swap_in:
            self._slots |= {(page, i): self._host[host, i] for i in size}
        contexts = {s: _contexts([*s.token_ids, *d]) for s, d in _drafts(plan)}
        for item in plan.scheduled:
            for position in range(item.start, item.start + item.num_tokens):
                for group, table in enumerate(item.sequence.cache.tables):
                    page = table[position // len(size)]
                    assert page != NULL_PAGE
                    assert self.cache.pool.reference_count(page) == 1, "a shared page is written"
                    value = (group, contexts[item.sequence][position])
                    self._slots[page, position % len(size)] = value
        for item in plan.scheduled:
            end = item.start + item.num_tokens
            self._check_visible(item.sequence, item.start, end, contexts[item.sequence])
        return {
            item.sequence: self._verify(item, contexts[item.sequence])
            for item in plan.scheduled
            if item.is_last_chunk
        }

    def _verify(self, item: ScheduledSequence, contexts: list[int]) -> list[int]:
        """Return the next token, and those after it as long as the guesses were right."""
        tokens: list[int] = []
        for position in range(len(item.sequence.token_ids) - 1, item.start + item.num_tokens):
            tokens.append(self._next_token(contexts[position], item.sequence))
            if tokens != list(item.draft[: len(tokens)]):
                break
        return tokens

    def _check_visible(self, sequence: Sequence, start: int, end: int, contexts: list[int]) -> None:
        """Assert that the tokens ``start .. end`` see the right keys, through the block tables."""
        size = self.layout.block_size
        for group, table in enumerate(sequence.cache.tables):
            window = self.layout.groups[group].window
            first = 0 if window is None else max(start - window + 1, 0)
            for position in range(first, end):
                slot = self._slots[table[position // size], position % size]
                assert slot == (group, contexts[position]), "a token reads a wrong key"


class Guesser:
    """A drafter that knows the answers of a `Simulation` and is wrong now and then."""

    def __init__(self, sim: Simulation, num_drafts: int) -> None:
        self.max_tokens, self._sim = num_drafts, sim
        self.known: set[int] = set()

    def propose(self, requests: list[DraftRequest]) -> list[list[int]]:
        self.known |= {request.seq_id for request in requests}
        return [self._guess(request) for request in requests]

    def forget(self, seq_id: int) -> None:
        self.known.discard(seq_id)

    def _guess(self, request: DraftRequest) -> list[int]:
        sequence = self._sim.sequences[request.seq_id]
        rng = random.Random(len(request.token_ids) * 1009 + request.seq_id)
        right = self._sim.expected(sequence)[sequence.num_output_tokens :]
        # Sometimes more than was asked for, sometimes nothing.
        count = rng.randint(0, request.max_tokens + 1)
        return [t if rng.random() < 0.7 else t + 1 for t in right[:count]]


def _drafts(plan: StepPlan) -> list[tuple[Sequence, tuple[int, ...]]]:
    return [(item.sequence, item.draft) for item in plan.scheduled]


def _contexts(tokens: list[int]) -> list[int]:
    """Return, per position, a number that stands for all tokens up to it."""
    contexts, context = [], 17
    for token in tokens:
        context = hash((context, token))
        contexts.append(context)
    return contexts


@pytest.fixture
def simulation() -> type[Simulation]:
    """The class above."""
    return Simulation


@pytest.fixture
def make_llm(tiny_model_dir: Callable[..., Any]) -> Iterator[Callable[..., LLM]]:
    """Factory of float32 engines on a small random Llama, pages of 4 tokens, all checks on."""
    made: list[LLM] = []

    def make(family: str = "llama", model: dict[str, Any] | None = None, **options: Any) -> LLM:
        defaults: dict[str, Any] = {
            "dtype": "float32",
            "backend": "reference",
            "block_size": 4,
            "num_kv_pages": 400,
            "max_model_len": 256,
            "check_integrity": True,
        }
        folder = tiny_model_dir(family, **(model or {}))
        made.append(LLM(str(folder), **(defaults | options)))
        return made[-1]

    yield make
    for llm in made:
        llm.close()
