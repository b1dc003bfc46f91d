"""The running account of a server, on a counter that tests move."""

from __future__ import annotations

import pytest

from infopt.energy.attribution import NJ_PER_J, SplitModel
from infopt.energy.ledger import EnergyLedger
from infopt.energy.meters import CounterMeter, NoMeter

EVEN = SplitModel("flops", 1.0, 1.0)


class Rig:
    """A ledger, its counter and its clock."""

    def __init__(self, fake_counter, clock, settle_s: float = 0.0) -> None:
        self.counter, self.clock = fake_counter(count_uj=0), clock
        meter = CounterMeter("rapl", [self.counter], now=clock.now)
        self.ledger = EnergyLedger(meter, settle_s, clock.now)
        self.observer = self.ledger.observer("m", EVEN, lambda step: 0.0)

    def pass_time(self, seconds: float, joules: float) -> None:
        self.clock.sleep(seconds)
        self.counter.count_uj += int(joules * 1e6)

    def step(self, step, shares, joules: float) -> None:
        self.observer.step_started()
        self.pass_time(step.duration_s, joules)
        self.observer.step_ended(step, shares)

    @property
    def total_nj(self) -> int:
        models = self.ledger.models.values()
        return self.ledger.idle_nj + sum(m.prefill_nj + m.decode_nj for m in models)


@pytest.fixture
def rig(fake_counter, clock) -> Rig:
    """A ledger that reads its counter after every step."""
    return Rig(fake_counter, clock)


def test_steps_and_the_time_between_them_are_kept_apart(rig, make_step, prefill, decode) -> None:
    rig.step(make_step(0.1), [prefill("a", 4)], 5.0)
    rig.pass_time(10.0, 20.0)
    rig.step(make_step(0.1), [decode("a", 1), decode("b", 3)], 8.0)
    energy, reason = rig.ledger.take("m", "a")
    assert energy is not None
    assert (energy.prefill_nj, energy.decode_nj) == (5 * NJ_PER_J, 2 * NJ_PER_J)
    assert reason is None
    assert rig.ledger.idle_nj == 20 * NJ_PER_J
    assert rig.ledger.models["m"].decode_nj == 8 * NJ_PER_J
    assert rig.total_nj == rig.counter.count_uj * 1000


def test_a_slow_counter_is_shared_by_the_steps_since_it_was_read(
    fake_counter, clock, make_step, decode
) -> None:
    rig = Rig(fake_counter, clock, settle_s=0.5)
    for name in "ab":
        rig.step(make_step(0.3), [decode(name, 1)], 6.0)
    assert rig.ledger.take("m", "a")[0].joules == pytest.approx(6.0)  # pyright: ignore
    assert rig.total_nj == 12 * NJ_PER_J


def test_a_request_that_ends_settles_the_account(fake_counter, clock, make_step, decode) -> None:
    rig = Rig(fake_counter, clock, settle_s=100.0)
    rig.step(make_step(0.3), [decode("a", 1)], 6.0)
    energy, _ = rig.ledger.take("m", "a")
    assert energy is not None
    assert energy.joules == 6.0


def test_a_counter_that_has_not_moved_gives_null_and_its_energy_is_charged_later(
    rig, make_step, decode
) -> None:
    rig.step(make_step(0.01), [decode("a", 1)], 0.0)
    energy, reason = rig.ledger.take("m", "a")
    assert energy is None
    assert "no power is known yet" in str(reason)
    assert "has not moved" in str(reason)
    rig.step(make_step(0.01), [decode("b", 1)], 4.0)
    assert rig.ledger.take("m", "b")[0].joules == pytest.approx(2.0)
    assert rig.total_nj == 4 * NJ_PER_J


def test_what_the_counter_has_not_shown_yet_is_estimated_for_the_answer_alone(
    rig, make_step, decode
) -> None:
    """Counters of GPUs move ten times a second; answers end in between."""
    rig.step(make_step(0.1), [decode("a", 1)], 20.0)  # 200 W
    rig.step(make_step(0.02), [decode("a", 1), decode("b", 1)], 0.0)
    energy, note = rig.ledger.take("m", "a")
    assert energy is not None
    assert energy.joules == pytest.approx(20.0 + 0.02 * 200 / 2)
    assert "its last 0.02 s are estimated" in str(note)
    rig.step(make_step(0.02), [decode("b", 1)], 10.0)
    assert rig.ledger.take("m", "b")[0].joules == pytest.approx(7.5)
    assert rig.total_nj == 30 * NJ_PER_J  # what the counter says, not what was estimated
    assert rig.ledger._requests == {"m": {}}


def test_a_window_without_energy_is_given_up_and_says_why(rig, make_step, decode) -> None:
    """A counter that stands still for seconds: nobody gets 0 J."""
    rig.step(make_step(2.0), [decode("a", 1)], 0.0)
    energy, reason = rig.ledger.take("m", "a")
    assert energy is None
    assert "counter did not advance" in str(reason)
    assert rig.ledger.num_lost_windows == 1
    rig.step(make_step(0.1), [decode("a2", 1)], 3.0)
    assert rig.ledger.take("m", "a2")[0].joules == 3.0


def test_without_a_meter_every_answer_has_the_reason(clock, make_step, decode) -> None:
    ledger = EnergyLedger(NoMeter("energy metering is off"), now=clock.now)
    observer = ledger.observer("m", EVEN, lambda step: 0.0)
    clock.sleep(5.0)
    observer.step_ended(make_step(0.1), [decode("a", 1)])
    assert ledger.take("m", "a") == (None, "energy metering is off")


def test_two_models_on_one_meter_do_not_mix(rig, make_step, decode) -> None:
    other = rig.ledger.observer("n", EVEN, lambda step: 0.0)
    rig.step(make_step(0.1), [decode("req-0", 1)], 1.0)
    rig.pass_time(0.1, 2.0)
    other.step_ended(make_step(0.1), [decode("req-0", 1)])
    assert rig.ledger.take("m", "req-0")[0].joules == 1.0
    assert rig.ledger.take("n", "req-0")[0].joules == 2.0


def test_accounts_of_dropped_requests_are_closed(rig, make_step, decode) -> None:
    rig.step(make_step(0.1), [decode("a", 1)], 1.0)
    rig.ledger.forget("m")
    assert rig.ledger.take("m", "a")[0] is None
    assert rig.ledger.models["m"].decode_nj == NJ_PER_J  # the total keeps what was used
