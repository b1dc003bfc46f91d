"""Energy in the records of the pipeline."""

from __future__ import annotations

import itertools

import pytest

from infopt.energy import EnergyReading, MeterChoice, RunEnergy
from infopt.energy.meters import CounterMeter
from infopt.energy.power_integral import PowerMeter
from infopt.energy.rapl import RaplCounter
from infopt.errors import ConfigError, MeasurementError
from infopt.experiments.energy import energy_section, meter_of, reading_section
from infopt.experiments.server_energy import parse_totals, server_energy_section
from infopt.experiments.slices import run_slice
from infopt.results import RunRecord, load_results
from infopt.select import pareto_front


class TickingCounter:
    """A counter that has gone on by a joule at every reading."""

    name = "package-0"
    wrap_uj = None
    update_s = 0.001

    def __init__(self) -> None:
        self._counts = itertools.count(1_000_000, 1_000_000)

    def read_uj(self) -> int:
        return next(self._counts)


@pytest.mark.usefixtures("fixed_machine")
def test_modelled_energy_of_a_slice_is_derived_everywhere(tmp_path, make_spec) -> None:
    run_slice(make_spec(energy={"meter": "modelled"}), tmp_path)
    table = load_results(tmp_path)
    assert set(table["energy.source"]) == {"modelled"}
    assert table["energy.derived"].all()
    assert (table["energy.j_per_token_low"] < table["energy.j_per_token"]).all()
    assert (table["energy.j_per_token"] < table["energy.j_per_token_high"]).all()
    rate = 12 / table["energy.measured_s"]  # tokens/s: J/token = mean power / throughput
    per_token = table["energy.watts"] / rate
    assert table["energy.j_per_token"].tolist() == pytest.approx(per_token.tolist())
    per_request = table["energy.j_per_token"] * 3  # three output tokens each
    assert table["energy.j_per_request"].tolist() == pytest.approx(per_request.tolist())
    phases = (
        table["energy.prefill_j_per_prompt_token"] * 12 * 4  # prompts of 12, 2 requests, 2 runs
        + table["energy.decode_j_per_token"] * 3 * 4
        + table["energy.idle_j"]
    )
    assert phases.tolist() == pytest.approx(table["energy.joules"].tolist())
    record = RunRecord.read(tmp_path / "runs" / "batching" / "page_size.page-8.json")
    assert "j_per_token" not in (record.comparison or {})
    assert "derived" in record._repr_html_()
    front = pareto_front(table, ["throughput", "j_per_token"])
    assert front["pareto_reason"].str.contains("modelled").all()


@pytest.mark.usefixtures("fixed_machine")
def test_measured_energy_is_compared_in_pairs(tmp_path, make_spec, monkeypatch) -> None:
    meter = CounterMeter("rapl", [TickingCounter()], {"dram-0": "absent"})
    monkeypatch.setattr(
        "infopt.experiments.slice_run.meter_of",
        lambda options, device: MeterChoice(meter, {"nvml": "no GPU"}),
    )
    run_slice(make_spec(energy={"idle_s": 0.2}), tmp_path)
    record = RunRecord.read(tmp_path / "runs" / "batching" / "page_size.page-8.json")
    assert record.energy["source"] == "rapl"
    assert record.energy["derived"] is False
    assert 0 < record.energy["idle_watts"] <= 5.0  # a joule in 0.2 s, or longer on a busy machine
    assert record.energy["joules"] == 2.0  # two runs, a joule each
    assert record.energy["excluded"] == "dram-0: absent"
    assert record.energy["better_meters"] == "nvml: no GPU"
    assert record.comparison is not None
    assert record.comparison["j_per_token"]["median"] == pytest.approx(1.0)
    assert record.intervals is not None
    assert record.intervals["energy.j_per_token"]["count"] == 2


@pytest.fixture
def run_metered(tmp_path, make_spec, monkeypatch):
    """Run a slice under a meter; return the record of its second candidate."""

    def run(meter) -> RunRecord:
        monkeypatch.setattr(
            "infopt.experiments.slice_run.meter_of",
            lambda options, device: MeterChoice(meter, {}),
        )
        run_slice(make_spec(), tmp_path)
        return RunRecord.read(tmp_path / "runs" / "batching" / "page_size.page-8.json")

    return run


@pytest.mark.usefixtures("fixed_machine")
def test_a_counter_file_that_stands_still_leaves_the_energy_empty(run_metered, tmp_path) -> None:
    """Pins: results that were all zero on a processor that nobody knew."""
    (tmp_path / "energy_uj").write_text("262143\n")
    # Runs of the tiny model take a millisecond, the usual interval of such a counter.
    counter = RaplCounter("package-0", tmp_path / "energy_uj", 262_143_328_850, update_s=1e-6)
    record = run_metered(CounterMeter("rapl", [counter]))
    assert record.status == "ok"
    numbers = ("j_per_token", "j_per_request", "joules", "watts", "decode_j_per_token")
    assert [record.energy.get(name) for name in numbers] == [None] * 5
    assert "package-0: counter did not advance" in record.energy["reason"]
    assert "j_per_token" not in (record.comparison or {})
    assert "Energy</th>" in record._repr_html_()
    assert "not given: package-0: counter did not advance" in record._repr_html_()


@pytest.mark.usefixtures("fixed_machine")
def test_a_counter_that_cannot_be_read_any_more_ends_no_run(run_metered, tmp_path) -> None:
    """Pins: an unreadable counter was an energy of 0, or ended the run."""
    gone = RaplCounter("package-0", tmp_path / "gone", 262_143_328_850)
    record = run_metered(CounterMeter("rapl", [TickingCounter(), gone], {"dram-0": "absent"}))
    assert (record.status, record.energy["j_per_token"]) == ("ok", None)
    assert "package-0: absent" in record.energy["reason"]
    assert record.energy["excluded"] == "dram-0: absent"


class Gauge:
    """A board that tells its power and has no counter."""

    name = "gpu-0"

    def read_watts(self) -> float:
        return 150.0


@pytest.mark.usefixtures("fixed_machine")
def test_sampled_power_is_labelled_in_record_and_table(run_metered) -> None:
    """Pins: energy from power samples could not be told from that of a counter."""
    record = run_metered(PowerMeter(Gauge(), interval_s=0.01, missing={"package": "not sampled"}))
    energy = record.energy
    assert (energy["source"], energy["interval_s"]) == ("power-integral", 0.01)
    assert energy["derived"] is False
    assert energy["joules"] == pytest.approx(150.0 * energy["measured_s"])
    assert energy["excluded"] == "package: not sampled"
    assert "Energy, power sampled every 0.01 s" in record._repr_html_()


@pytest.mark.usefixtures("fixed_machine")
def test_energy_can_be_switched_off_and_says_so(tmp_path, make_spec) -> None:
    run_slice(make_spec(energy={"meter": "none"}), tmp_path)
    table = load_results(tmp_path)
    assert table["energy.reason"].str.contains("energy.meter: none").all()


def test_options_are_checked() -> None:
    with pytest.raises(MeasurementError, match="nvml"):
        meter_of({"meter": "nvml"}, "cpu")
    with pytest.raises(ConfigError, match="busy_w_per_core"):
        meter_of({"constants": {"busy_w_per_cor": {}}}, "cpu")
    with pytest.raises(ConfigError, match="source"):
        meter_of({"constants": {"busy_w_per_core": {"value": 3, "low": 2, "high": 4}}}, "cpu")
    own = {"value": 3.0, "low": 2.0, "high": 4.0, "source": "wall plug"}
    assert meter_of({"constants": {"busy_w_per_core": own}}, "cpu").meter.source is not None


def test_runs_that_were_not_all_metered_have_no_energy(load_result) -> None:
    first, second = load_result(), load_result()
    first.energy = RunEnergy(EnergyReading("rapl", 3.0, 1.0))
    assert energy_section([first, second])["j_per_token"] is None
    second.energy = RunEnergy(EnergyReading.none("counter did not advance", 1.0))
    section = energy_section([first, second])
    assert (section["j_per_token"], section["reason"]) == (None, "counter did not advance")


@pytest.fixture
def load_result():
    """Factory of runs with one request of no tokens."""
    from infopt.bench.load_result import LoadResult

    return lambda: LoadResult("batch", [], [], 0.0, 1.0)


def test_nothing_served_is_no_energy_per_token() -> None:
    section = reading_section(EnergyReading("rapl", 3.0, 1.0), 0, 0)
    assert (section["j_per_token"], section["reason"]) == (None, "no request was completed")


METRICS = """
# TYPE infopt_energy_joules counter
infopt_energy_joules_total{model="m",phase="prefill",source="rapl"} 10
infopt_energy_joules_total{model="m",phase="decode",source="rapl"} 30
# TYPE infopt_energy_idle_joules counter
infopt_energy_idle_joules_total{source="rapl"} 5
# TYPE infopt_energy_lost_windows counter
infopt_energy_lost_windows_total 0
# TYPE infopt_generated_tokens counter
infopt_generated_tokens_total{model="m"} 100
# TYPE infopt_completions_finished counter
infopt_completions_finished_total{model="m",reason="length"} 10
"""


def test_a_servers_energy_is_the_difference_of_its_totals() -> None:
    before = parse_totals(METRICS)
    assert (before.source, before.joules, before.num_tokens) == ("rapl", 45.0, 100.0)
    after = parse_totals(METRICS.replace(" 30\n", " 130\n").replace("} 100\n", "} 150\n"))
    assert after.num_requests == before.num_requests
    done = parse_totals(
        METRICS.replace(" 30\n", " 130\n")
        .replace("} 100\n", "} 150\n")
        .replace('"length"} 10', '"length"} 15')
    )
    section = server_energy_section(before, done, 4.0)
    assert (section["j_per_token"], section["j_per_request"]) == (2.0, 20.0)
    assert section["watts"] == 25.0
    lost = parse_totals(METRICS.replace("windows_total 0", "windows_total 2"))
    assert server_energy_section(before, lost, 4.0)["reason"] is not None
    nothing = server_energy_section(parse_totals(""), parse_totals(""), 4.0)
    assert "does not meter" in nothing["reason"]
