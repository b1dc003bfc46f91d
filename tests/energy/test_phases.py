"""Prefill and decode of mixed traffic against the same phases measured one at a time.

The engine runs for real, on a clock that a law moves: a step reads the weights once and computes
each token. The counter follows that clock, so what each phase takes alone is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from infopt import LLM, SamplingParams
from infopt.energy import MeterChoice
from infopt.energy.attribution import NJ_PER_J, Attribution
from infopt.energy.meters import CounterMeter
from infopt.energy.run import measured_run
from infopt.engine.clock import VirtualClock

WATTS, CONCURRENCY = 50.0, 6
LENGTHS = [(40, 24), (90, 9), (12, 60), (64, 31), (120, 16), (25, 45), (70, 12), (33, 80)]
"""Tokens of prompts and outputs."""


@dataclass(frozen=True)
class Law:
    """Seconds that a step takes.

    Attributes:
        read_s: For the weights, once.
        prefill_s: Per prompt token.
        decode_s: Per output token.
    """

    read_s: float
    prefill_s: float
    decode_s: float


LAWS = {
    "both count": Law(1e-3, 0.25e-3, 0.28e-3),
    "arithmetic decides": Law(0.1e-3, 0.25e-3, 0.4e-3),
    "long contexts": Law(2e-3, 0.25e-3, 2e-3),
}


class Rig:
    """An engine on a clock of its own, and a counter of what it uses."""

    def __init__(self, folder: Any, law: Law) -> None:
        self.clock = VirtualClock()
        self.llm = LLM(
            str(folder),
            clock=self.clock,
            dtype="float32",
            max_num_batched_tokens=128,
            max_num_seqs=CONCURRENCY,
            enable_prefix_caching=False,
            max_model_len=256,
        )
        runner, hidden = self.llm.engine.runner, self.llm.engine.runner.hidden

        def timed(ctx: Any) -> Any:
            num_prefill = len(ctx.input_ids) - ctx.num_decodes
            self.clock.advance(law.read_s + law.prefill_s * num_prefill)
            self.clock.advance(law.decode_s * ctx.num_decodes)
            return hidden(ctx)

        runner.hidden = timed  # type: ignore[method-assign]
        self._meter = CounterMeter("rapl", [self], now=self.clock.now)

    name = "package-0"
    wrap_uj = None
    update_s = 1e-6

    def read_uj(self) -> int:
        return round(self.clock.now() * WATTS * 1e6)

    def add(self, index: int, num_prompt: int, num_output: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=num_output, ignore_eos=True)
        prompt = [4 + (7 * index + i) % 300 for i in range(num_prompt)]
        self.llm.engine.add_request(f"r{index}", prompt, params)

    def measure(self, work: Callable[[], None]) -> Attribution:
        with measured_run(self.llm.engine, MeterChoice(self._meter, {}), lambda _: 0.0) as energy:
            work()
        assert energy.account is not None
        return energy.account

    def step(self, until: Callable[[], bool] = lambda: False) -> None:
        """Step to the end, or until something holds."""
        while self.llm.engine.has_unfinished and not until():
            self.llm.engine.step()

    def all_decode(self) -> bool:
        """Whether every request has read its prompt."""
        scheduler = self.llm.engine.scheduler
        return not scheduler.waiting and all(s.num_output_tokens for s in scheduler.running)


@pytest.fixture(params=LAWS)
def rig(request: pytest.FixtureRequest, tiny_model_dir: Callable[..., Any]) -> Iterator[Rig]:
    """An engine under each law."""
    made = Rig(tiny_model_dir("llama"), LAWS[request.param])
    yield made
    made.llm.close()


def prompts_alone(rig: Rig) -> float:
    """Return joules per prompt token of prompts that are read one by one, and no output written."""

    def read() -> None:
        for index, (num_prompt, _) in enumerate(LENGTHS):
            rig.add(index, num_prompt, 0)
            rig.step()

    account = rig.measure(read)
    assert account.decode_nj == 0
    return account.prefill_nj / NJ_PER_J / sum(n for n, _ in LENGTHS)


def outputs_alone(rig: Rig) -> float:
    """Return joules per output token of steps that write as many outputs as mixed traffic has."""
    for index in range(CONCURRENCY):
        rig.add(100 + index, 20, 50)
    rig.step(rig.all_decode)
    written = rig.llm.engine.stats.num_generated_tokens
    account = rig.measure(rig.step)
    assert account.prefill_nj == 0
    num_tokens = rig.llm.engine.stats.num_generated_tokens - written
    return account.decode_nj / NJ_PER_J / num_tokens


def mixed(rig: Rig) -> tuple[Attribution, int, int]:
    """Return the account of traffic whose prompts and outputs share steps, and its tokens."""
    pending = [*enumerate(LENGTHS * 4, start=200)]

    def serve() -> None:
        while pending or rig.llm.engine.has_unfinished:
            while pending and rig.llm.engine.num_requests < CONCURRENCY:
                index, (num_prompt, num_output) = pending.pop(0)
                rig.add(index, num_prompt, num_output)
            rig.llm.engine.step()

    account = rig.measure(serve)
    num_outputs = sum(n - 1 for _, n in LENGTHS * 4)  # the first token is the prompt's
    return account, sum(n for n, _ in LENGTHS * 4), num_outputs


def test_the_split_agrees_with_each_phase_alone(rig: Rig) -> None:
    """Each phase's share of mixed traffic is within 15 % of what both take alone."""
    per_prompt_token, per_output_token = prompts_alone(rig), outputs_alone(rig)
    account, num_prompt, num_output = mixed(rig)
    assert account.split == "time"
    assert account.prefill_nj + account.decode_nj + account.idle_nj == account.total_nj
    alone = per_prompt_token * num_prompt, per_output_token * num_output
    whole = account.prefill_nj + account.decode_nj
    for found, expected in zip((account.prefill_nj, account.decode_nj), alone, strict=True):
        assert found / whole == pytest.approx(expected / sum(alone), rel=0.15)
