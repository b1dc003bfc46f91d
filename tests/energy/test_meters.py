"""Windows of every meter, with imitated counters."""

import pytest
import torch

from infopt.energy.choose import Probes, choose_meter
from infopt.energy.counters import unreadable
from infopt.energy.errors import CounterUnreadableError
from infopt.energy.meters import CounterMeter, ModelledMeter, idle_reading
from infopt.energy.power_integral import PowerMeter, trapezoid
from infopt.energy.reading import EnergyReading, add_readings
from infopt.energy.replay import Recording, write_recording
from infopt.errors import ConfigError, MeasurementError

CUDA = torch.device("cuda", 0)


def test_counters_are_read_after_the_device_is_done(fake_counter, clock) -> None:
    events: list[str] = []
    counter = fake_counter(count_uj=0)
    meter = CounterMeter("rapl", [counter], {}, lambda: events.append("sync"), clock.now)
    window = meter.start()
    clock.sleep(4.0)
    counter.count_uj = 10_000_000
    window.stop()
    reading = window.reading()
    assert (reading.joules, reading.seconds, reading.watts) == (10.0, 4.0, 2.5)
    assert reading.parts == {"package-0": 10.0}
    assert not reading.is_derived
    assert events == ["sync", "sync"]


def test_domains_add_up_and_missing_ones_are_named(fake_counter, clock) -> None:
    package, dram = fake_counter(count_uj=0), fake_counter("dram-0", count_uj=0)
    meter = CounterMeter("rapl", [package, dram], {"dram-1": "absent"}, now=clock.now)
    window = meter.start()
    clock.sleep(1.0)
    package.count_uj, dram.count_uj = 3_000_000, 500_000
    window.stop()
    reading = window.reading()
    assert reading.joules == 3.5
    assert reading.missing == {"dram-1": "absent"}


@pytest.mark.parametrize("at_start", [True, False])
def test_a_counter_that_cannot_be_read_gives_null_and_the_reason(
    fake_counter, clock, at_start: bool
) -> None:
    counter = fake_counter()
    meter = CounterMeter("rapl", [counter], now=clock.now)
    error = unreadable("package-0", "permission", "energy_uj: mode 0400")
    counter.error = error if at_start else None
    window = meter.start()
    clock.sleep(2.0)
    counter.error = error
    window.stop()
    reading = window.reading()
    assert reading.joules is None
    assert reading.reason is not None
    assert "permission" in reading.reason


def test_a_counter_that_stands_still_leaves_the_window_empty(fake_counter, clock) -> None:
    window = CounterMeter("rapl", [fake_counter()], now=clock.now).start()
    clock.sleep(1.0)
    window.stop()
    reading = window.reading()
    assert reading.joules is None
    assert reading.watts is None
    assert "counter did not advance" in str(reading.reason)


def test_idle_power_is_measured_apart(fake_counter, clock) -> None:
    counter = fake_counter(count_uj=0)

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        counter.count_uj += int(seconds * 40e6)

    meter = CounterMeter("rapl", [counter], now=clock.now)
    assert idle_reading(meter, 3.0, sleep).watts == pytest.approx(40.0)


def test_power_is_integrated_where_there_is_no_energy_counter(fake_nvml, clock) -> None:
    nvml = fake_nvml(unsupported={"energy"})
    choice = choose_meter(CUDA, probes=probes(nvml))
    assert choice.meter.source == "power-integral"
    assert "unsupported" in choice.why_not["nvml"]
    gauge = choice.meter.gauge  # pyright: ignore[reportAttributeAccessIssue]
    window = PowerMeter(gauge, 0.5, now=clock.now, runs_thread=False).start()
    for watts in (200, 300, 100):
        clock.sleep(1.0)
        nvml.power_mw = watts * 1000
        window.sample()
    clock.sleep(1.0)
    window.stop()
    reading = window.reading()
    assert reading.joules == pytest.approx((150 + 200) / 2 + 250 + 200 + 100)
    assert (reading.source, reading.interval_s) == ("power-integral", 0.5)


def test_power_windows_sample_by_themselves(fake_nvml) -> None:
    gauge = choose_meter(CUDA, "power-integral", probes=probes(fake_nvml())).meter
    window = gauge.start()
    window.stop()
    reading = window.reading()
    assert reading.watts == pytest.approx(150.0)


def test_a_board_that_tells_nothing_has_no_energy(fake_nvml) -> None:
    choice = choose_meter(CUDA, probes=probes(fake_nvml(unsupported={"energy", "power"})))
    reading = choice.meter.start().reading()
    assert choice.meter.source is None
    assert reading.joules is None
    assert "unsupported" in str(reading.reason)
    assert list(choice.why_not) == ["nvml", "power-integral"]


def test_a_gpu_is_measured_with_its_host(fake_nvml, fake_counter) -> None:
    rapl = [fake_counter(count_uj=0)]
    choice = choose_meter(CUDA, probes=probes(nvml := fake_nvml(), rapl))
    window = choice.meter.start()
    nvml.energy_mj += 2_000
    rapl[0].count_uj += 500_000
    choice.meter.now = lambda: 1e9  # pyright: ignore[reportAttributeAccessIssue]
    window.stop()
    reading = window.reading()
    assert reading.source == "nvml+rapl"
    assert reading.parts == {"gpu-0": 2.0, "package-0": 0.5}


def test_a_gpu_without_readable_packages_says_what_is_left_out(fake_nvml) -> None:
    choice = choose_meter(CUDA, probes=probes(fake_nvml()))
    assert choice.meter.source == "nvml"
    assert choice.meter.start().reading().missing == {"package": "permission"}


def test_a_cpu_without_counters_is_modelled_and_says_why() -> None:
    choice = choose_meter("cpu", probes=probes(None))
    assert choice.meter.source == "modelled"
    assert choice.why_not == {"rapl": "permission"}
    assert str(choice) == "modelled (derived, not measured) (no rapl: permission)"


def test_a_meter_that_was_named_is_a_demand() -> None:
    with pytest.raises(CounterUnreadableError, match="permission"):
        choose_meter("cpu", "rapl", probes=probes(None))
    with pytest.raises(CounterUnreadableError, match="not guessed"):
        choose_meter(CUDA, "modelled", probes=probes(None))
    with pytest.raises(ConfigError, match="Did you mean 'rapl'"):
        choose_meter("cpu", "rappl")  # pyright: ignore[reportArgumentType]
    assert choose_meter("cpu", "none").meter.start().reading().joules is None


def test_modelled_energy_is_the_formula_with_both_ends(clock) -> None:
    cpu = iter([100.0, 106.0])
    meter = ModelledMeter(num_cores=2, now=clock.now, cpu_time=lambda: next(cpu))
    window = meter.start()
    clock.sleep(4.0)
    window.stop()
    reading = window.reading(dram_bytes=50e9)
    assert reading.joules == pytest.approx(0.74 * 8 + 2.76 * 6 + 112e-12 * 50e9)
    assert reading.low == pytest.approx(0.45 * 8 + 1.17 * 6 + 31e-12 * 50e9)
    assert reading.high == pytest.approx(1.90 * 8 + 4.09 * 6 + 325e-12 * 50e9)
    assert reading.is_derived
    assert sum(reading.parts.values()) == pytest.approx(reading.joules)
    assert window.reading().joules is None  # bytes that nobody counted are not 0 bytes


def test_windows_add_up_and_one_without_energy_leaves_none() -> None:
    one = EnergyReading("rapl", 2.0, 1.0, parts={"package-0": 2.0})
    total = add_readings([one, one])
    assert (total.joules, total.seconds, total.parts) == (4.0, 2.0, {"package-0": 4.0})
    assert add_readings([one, EnergyReading.none("stuck", 1.0)]).joules is None
    assert add_readings([]).reason == "nothing was measured"


def test_recorded_counters_replay_with_their_wrap_around(tmp_path, fake_counter) -> None:
    path = tmp_path / "rapl.csv"
    counters = [fake_counter(wrap_uj=1_000_000_000), fake_counter("dram-0")]
    write_recording(path, counters, [(0.0, (999_000_000, 5)), (2.0, (2_000_000, 700_005))])
    recording = Recording.read(path)
    window = CounterMeter("rapl", recording.counters(), now=recording.now).start()
    recording.advance()
    window.stop()
    assert window.reading().parts == {"package-0": 3.0, "dram-0": 0.7}
    with pytest.raises(MeasurementError, match="has ended"):
        recording.advance()


def test_a_broken_recording_names_the_line(tmp_path) -> None:
    path = tmp_path / "rapl.csv"
    path.write_text("time_s,package-0\n0.0,1\n1.0,many\n", "utf-8")
    with pytest.raises(MeasurementError, match="line 3"):
        Recording.read(path)
    for absent in (tmp_path, tmp_path / "absent.csv"):
        with pytest.raises(MeasurementError, match="cannot be read"):
            Recording.read(absent)


def test_trapezoid_of_a_ramp() -> None:
    assert trapezoid([(0.0, 0.0), (2.0, 100.0), (3.0, 100.0)]) == 200.0


def probes(nvml, rapl=None) -> Probes:
    """Return imitated hardware; without counters the packages cannot be read."""
    missing = {} if rapl else {"package": "permission"}
    return Probes(
        nvml=lambda: nvml,
        handle=lambda *_: "handle",
        rapl=lambda: (list(rapl or []), dict(missing)),
        sync=lambda: None,
    )
