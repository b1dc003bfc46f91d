"""The control finds what an oracle would choose, on given costs and acceptance and a virtual clock.

A `World` stands for engine and drafter: a step takes what its cost curve says, a proposal what the
drafter's says, and guesses are kept by the toss of a seeded coin. The oracle is the best fixed
length, tried exhaustively by its expectation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from infopt.engine.clock import VirtualClock
from infopt.engine.draft_control import DraftedPass, StepOutcome
from infopt.engine.drafting import DraftRequest
from infopt.speculative.controller import AutoControl
from infopt.speculative.theory import expected_tokens

LONGEST = 8
RIGHT, WRONG = 1, 0
"""Tokens: all guesses are the former, an output has it with the probability that it is guessed."""


def flat_then_linear(knee: float, slope: float = 1.0) -> Callable[[int], float]:
    """Reading weights limits up to ``knee`` rows, arithmetic beyond; 1 ms at least."""
    return lambda rows: 1e-3 * (1 + slope * max(rows - knee, 0) / knee)


@dataclass
class World:
    """Steps of outputs that never end.

    Attributes:
        step_s: Seconds of a step by rows.
        alpha: Probability that a guess is kept, by step and output.
        batch: Outputs.
        per_output_s: Seconds of a proposal per output asked.
        per_position_s: Seconds of a proposal per position.
        given: Probability that the drafter has guesses.
        noise: Relative noise of times.
    """

    step_s: Callable[[int], float]
    alpha: Callable[[int, int], float]
    batch: int = 1
    per_output_s: float = 0.0
    per_position_s: float = 0.0
    given: float = 1.0
    noise: float = 0.0
    max_tokens: int = LONGEST
    num_waiting: int = 1

    def __post_init__(self) -> None:
        self.clock, self.rng, self.step = VirtualClock(), random.Random(7), 0
        self.control = AutoControl(self.clock, LONGEST)
        self.num_tokens, self.lengths = 0, [0] * (LONGEST + 1)
        self.running = list(range(self.batch))
        self.texts: list[list[int]] = [[RIGHT] for _ in range(self.batch)]

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        longest = max(request.max_tokens for request in requests)
        self.clock.advance(self.per_output_s * len(requests) + self.per_position_s * longest)
        has = [self.rng.random() < self.given for _ in requests]
        return [[RIGHT] * r.max_tokens if own else [] for r, own in zip(requests, has, strict=True)]

    def forget(self, seq_id: int) -> None:
        """Nothing is remembered."""

    def run(self, num_steps: int) -> float:
        """Do steps; return tokens per second."""
        start_s, before = self.clock.now(), self.num_tokens
        for _ in range(num_steps):
            self._step()
        return (self.num_tokens - before) / (self.clock.now() - start_s)

    def drain(self, num_tokens: int) -> float:
        """Let new outputs make so many tokens each; return the seconds until the last ends."""
        first, start_s = len(self.texts), self.clock.now()
        self.texts += [[RIGHT] for _ in range(self.batch)]
        self.running = list(range(first, first + self.batch))
        while self.running:
            self._step()
            for i in [i for i in self.running if len(self.texts[i]) > num_tokens]:
                self.running.remove(i)
                self.control.forget(i)
        return self.clock.now() - start_s

    def _step(self) -> None:
        requests = [DraftRequest(i, self.texts[i], LONGEST) for i in self.running]
        batch = len(requests)
        asks = self.control.wants_drafts(batch)
        drafts = [[]] * batch
        if asks:
            drafts = self.control.propose(self, requests, num_waiting=self.num_waiting)
        lengths = self.lengths_now = [len(draft) for draft in drafts]
        verified = [self._verify(i, n) for i, n in zip(self.running, lengths, strict=True)]
        seconds = self.step_s(batch + sum(lengths))
        seconds *= 1 + self.noise * self.rng.uniform(-1, 1)
        self.clock.advance(seconds)
        outcome = StepOutcome(
            num_rows=batch,
            num_decodes=batch,
            num_guesses=sum(lengths),
            seconds=seconds,
            draft_s=self.control.take_draft_s(),
            passes=tuple(p for p in verified if p.num_judged),
        )
        self.num_tokens += outcome.num_tokens
        for length in lengths:
            self.lengths[length] += 1
        self.control.observe(outcome)
        self.step += 1

    def _verify(self, output: int, length: int) -> DraftedPass:
        kept = 0
        while self.rng.random() < self.alpha(self.step, output):
            self.texts[output].append(RIGHT)
            if kept == length:  # the token after the guesses is as good as any
                return DraftedPass(output, length, kept, kept + 1)
            kept += 1
        self.texts[output].append(WRONG)
        return DraftedPass(output, length, kept, kept + 1)

    def rate(self, length: int, alpha: float) -> float:
        """Expected tokens per second of one length for all outputs."""
        hits = self.batch * self.given
        proposing_s = self.per_output_s * self.batch + self.per_position_s * length
        tokens = self.batch - hits + hits * expected_tokens(alpha, length)
        seconds = self.step_s(round(self.batch + hits * length)) + (proposing_s if length else 0)
        return tokens / seconds

    def oracle(self, alpha: float) -> tuple[int, float]:
        """Return the best length and its rate."""
        best = max(range(LONGEST + 1), key=lambda length: self.rate(length, alpha))
        return best, self.rate(best, alpha)


CURVES = {
    "weights-limit": flat_then_linear(64),
    "knee-at-4": flat_then_linear(4),
    "linear": lambda rows: 1e-3 * (0.6 + 0.4 * rows),
    "expensive": lambda rows: 1e-3 * rows,
    "jump": lambda rows: 1e-3 if rows == 1 else 1.6e-3 + 0.02e-3 * rows,
}
DRAFTERS = {"free": (0.0, 0.0), "text": (2e-5, 0.0), "model": (0.0, 1.5e-4)}


def gain_of(world: World, alpha: float, num_steps: int = 800) -> float:
    """Tokens per second of the next steps over the oracle's."""
    world.rng = random.Random(11)
    return world.run(num_steps) / world.oracle(alpha)[1]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 0.9])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("curve", CURVES)
def test_it_comes_close_to_the_best_length(
    curve: str, drafter: str, batch: int, alpha: float
) -> None:
    costs = DRAFTERS[drafter]
    world = World(CURVES[curve], lambda *_: alpha, batch, *costs, noise=0.05)
    world.run(300)
    # The coin itself gives 1 to 2 % more or less than its expectation.
    assert gain_of(world, alpha) > 0.94, (world.oracle(alpha), world.lengths)


def test_it_is_off_where_nothing_is_kept_or_verifying_is_dear() -> None:
    for curve, alpha in ((CURVES["weights-limit"], 0.0), (lambda rows: 1e-3 * rows**2, 0.9)):
        world = World(curve, lambda *_, alpha=alpha: alpha, per_position_s=1e-4)
        world.run(500)
        before, start_s = world.control.describe(), world.clock.now()
        world.lengths = [0] * (LONGEST + 1)
        assert gain_of(world, alpha) > 0.97
        assert world.lengths[0] > 600
        after = world.control.describe()
        assert after["decisions"]["on"] == before["decisions"]["on"]
        # What was not needed before may be used up as well.
        allowed_s = 0.02 * (world.clock.now() - start_s) + 4e-3
        assert after["probe_s"] - before["probe_s"] < allowed_s


def test_it_comes_back_when_acceptance_changes_and_leaves_again() -> None:
    period = 1500
    world = World(
        CURVES["linear"],
        lambda step, _: 0.9 if step // period % 2 else 0.0,
        per_output_s=2e-5,
        noise=0.05,
    )
    world.run(period)
    for alpha in (0.9, 0.0, 0.9, 0.0):
        # Coming back takes a try, which comes with the allowance, and a few steps to believe it.
        assert gain_of(world, alpha, 300) > (0.8 if alpha else 0.7)
        assert gain_of(world, alpha, period - 300) > 0.95


def test_it_follows_costs_that_change() -> None:
    world = World(CURVES["weights-limit"], lambda *_: 0.7, noise=0.05)
    world.run(1000)
    assert gain_of(world, 0.7) > 0.95
    world.step_s = lambda rows: 1e-3 * rows**1.5
    world.run(600)
    assert world.oracle(0.7)[0] == 0
    assert gain_of(world, 0.7) > 0.95


def test_outputs_that_keep_nothing_get_nothing() -> None:
    """Half of the outputs copy their prompt, the others do not; the batch has both."""
    world = World(flat_then_linear(16), lambda _, output: 0.95 * (output % 2), batch=8)
    chosen = [0] * 8
    for step in range(1200):
        world.run(1)
        if step > 400:
            for output in range(8):
                chosen[output] += world.lengths_now[output] > 0
    assert min(chosen[1::2]) > 700
    assert max(chosen[0::2]) < 120
    assert world.run(500) > 1.7 * world.rate(0, 0.0)


def test_a_drafter_without_guesses_costs_what_asking_costs() -> None:
    cheap = World(CURVES["linear"], lambda *_: 0.9, per_output_s=1e-5, given=0.0)
    dear = World(CURVES["linear"], lambda *_: 0.9, per_output_s=4e-4, given=0.0)
    for world in (cheap, dear):
        world.run(300)
        assert world.run(1000) > 0.97 * 1e3
    assert cheap.control.describe()["decisions"]["empty"] > 1000
    assert dear.control.describe()["decisions"]["off"] > 800


def test_rare_guesses_that_are_right_are_verified() -> None:
    world = World(CURVES["weights-limit"], lambda *_: 0.9, per_output_s=1e-5, given=0.2)
    world.run(300)
    assert gain_of(world, 0.9) > 0.95


@pytest.mark.parametrize("alphas", [(0.0, 0.9), (0.5,)])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("curve", ["weights-limit", "linear", "jump"])
def test_the_last_output_of_a_batch_is_not_late(
    curve: str, batch: int, alphas: tuple[float, ...]
) -> None:
    """Whatever the others copy: guesses for them make the steps of all longer."""
    world = World(
        CURVES[curve], lambda _, i: alphas[i % len(alphas)], batch, 8e-6, noise=0.05, num_waiting=0
    )
    world.drain(50)
    guessing_s = sum(world.drain(100) for _ in range(3))
    plain_s = 3 * 100 * world.step_s(batch)
    assert guessing_s < 1.03 * plain_s, world.control.describe()


@pytest.mark.parametrize("batch", [1, 8])
def test_a_batch_that_copies_ends_earlier(batch: int) -> None:
    world = World(flat_then_linear(32), lambda *_: 0.9, batch, 8e-6, noise=0.05, num_waiting=0)
    world.drain(200)
    assert world.drain(100) < 100 * world.step_s(batch) / (2.5 if batch == 1 else 1.5)


def test_with_others_waiting_tokens_per_second_count_alone() -> None:
    """One of eight outputs copies nothing. Nobody waits: it is not delayed. Others wait: it is."""
    rates = []
    for num_waiting in (0, 1):
        curve = flat_then_linear(8, slope=0.4)
        world = World(curve, lambda _, i: 0.9 * (i > 0), 8, num_waiting=num_waiting)
        world.run(200)
        rates.append(world.run(400))
    plain = 8 / world.step_s(8)
    assert 0.98 * plain < rates[0] < 1.15 * plain
    assert rates[1] > 1.3 * plain


def test_predicted_and_measured_gain_agree() -> None:
    world = World(CURVES["knee-at-4"], lambda *_: 0.7, per_position_s=5e-5, noise=0.05)
    world.run(300)
    world.control.reset_counts()
    rate = world.run(1000)
    found = world.control.describe()
    assert found["measured_speedup"] == pytest.approx(rate / world.rate(0, 0.7), rel=0.03)
    assert found["predicted_speedup"] == pytest.approx(found["measured_speedup"], rel=0.05)
    assert sum(found["decisions"].values()) == 1000
    assert found["kept_shares"][0] == pytest.approx(0.7, abs=0.06)
    assert found["draft_s_per_position"] == pytest.approx(5e-5, rel=0.15)
    assert {(p["rows"], p["guesses"]) for p in found["step_s"]} >= {(1.0, 0.0), (1.0, 3.0)}


def test_prompts_in_a_step_do_not_count_as_gain() -> None:
    """A long chunk of a prompt makes tokens per second low; a guess is worth no more for it."""
    world = World(CURVES["expensive"], lambda *_: 0.5, batch=4)
    world.run(200)
    for _ in range(200):
        requests = [DraftRequest(i, world.texts[i], LONGEST) for i in range(4)]
        lengths = [len(d) for d in world.control.propose(world, requests, 252, num_waiting=1)]
        passes = tuple(world._verify(i, n) for i, n in enumerate(lengths) if n)
        seconds = world.step_s(256 + sum(lengths))
        outcome = StepOutcome(256, 4, sum(lengths), seconds, world.control.take_draft_s(), passes)
        world.control.observe(outcome)
    world.lengths = [0] * (LONGEST + 1)
    found = world.control.describe()["decisions"]
    assert found["on"] < 20


def test_the_same_world_gives_the_same_decisions() -> None:
    worlds = [World(CURVES["jump"], lambda *_: 0.6, 4, 2e-5, 1e-5, noise=0.1) for _ in range(2)]
    for world in worlds:
        world.run(400)
    assert worlds[0].lengths == worlds[1].lengths
    assert worlds[0].control.describe() == worlds[1].control.describe()


def test_ended_outputs_are_forgotten() -> None:
    world = World(CURVES["linear"], lambda *_: 0.6, batch=3)
    world.run(50)
    assert world.control._forecast.acceptance.num_outputs == 3
    for output in range(3):
        world.control.forget(output)
    assert world.control._forecast.acceptance.num_outputs == 0
    assert not world.control._tries._latest
    world.control.forget(99)
    assert world.control.propose(world, []) == []
