"""Energy in usage and ``/metrics``, with the modelled meter that every machine has."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infopt.energy import EnergyConstants, MeterName
from infopt.errors import ConfigError, MeasurementError
from infopt.hardware import usable_cores
from infopt.serve import config as serve_config
from infopt.serve.config import ServeConfig
from infopt.serve.energy import read_constants

PROMPT = list(range(10, 40))


def energies(server: Any) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    return {
        (s.name, *sorted(s.labels.values())): s.value
        for family in families
        if "energy" in family.name
        for s in family.samples
    }


def test_requests_that_ask_are_told_their_energy_and_totals_agree(start_server) -> None:
    server = start_server(energy="modelled")
    used = [
        server.complete(PROMPT, max_tokens=6, ignore_eos=True, include_energy=True)["usage"]
        for _ in range(3)
    ]
    total = 0.0
    for usage in used:
        energy = usage["energy"]
        assert energy["source"] == "modelled"
        assert energy["derived"] is True
        assert energy["reason"] is None
        assert energy["prefill_joules"] > 0
        assert energy["decode_joules"] > 0
        parts = energy["prefill_joules"] + energy["decode_joules"]
        assert energy["joules"] == pytest.approx(parts)
        total += energy["joules"]
    seen = energies(server)
    phases = [value for key, value in seen.items() if key[0] == "infopt_energy_joules_total"]
    assert len(phases) == 2
    assert sum(phases) == pytest.approx(total)
    idle = seen["infopt_energy_idle_joules_total", "modelled"]
    low = seen["infopt_energy_range_joules_total", "low"]
    high = seen["infopt_energy_range_joules_total", "high"]
    assert low < total + idle < high
    assert seen["infopt_energy_lost_windows_total",] == 0


def test_several_prompts_and_answers_are_one_sum(start_server) -> None:
    server = start_server(energy="modelled")
    answer = server.complete([PROMPT, PROMPT[5:]], max_tokens=3, n=2, include_energy=True)
    assert answer["usage"]["energy"]["joules"] > 0


def test_a_stream_tells_its_energy_with_its_usage(start_server) -> None:
    server = start_server(energy="modelled")
    body = {"max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    response = server.post("/v1/completions", prompt=PROMPT, include_energy=True, **body)
    lines = [x for x in response.text.splitlines() if x.startswith("data: {")]
    last = json.loads(lines[-1].removeprefix("data: "))
    assert last["usage"]["energy"]["joules"] > 0


def test_energy_is_opt_in_twice(server) -> None:
    """A server that does not meter says so; nobody who did not ask sees a new field."""
    assert "energy" not in server.complete(PROMPT, max_tokens=1)["usage"]
    energy = server.complete(PROMPT, max_tokens=1, include_energy=True)["usage"]["energy"]
    assert energy["joules"] is None
    assert "--energy" in energy["reason"]
    assert energies(server) == {}


def test_accounts_are_closed_with_their_requests(start_server) -> None:
    server = start_server(energy="modelled")
    for _ in range(3):
        server.complete(PROMPT, max_tokens=2)
    assert server.service.energy.ledger._requests == {"tiny": {}}


def test_a_meter_that_is_not_there_stops_the_start(start_server, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus.device.cpu", None)
    with pytest.raises(MeasurementError, match="rapl"):
        start_server(energy="rapl")


def test_constants_of_ones_own_change_what_is_modelled(start_server, tmp_path) -> None:
    """A hundred times the watts of everything is a hundred times the energy, in both ends, too."""
    path = tmp_path / "constants.yaml"
    quoted = {"source": "made up for this test"}
    idle = {"value": 1000.0, "low": 1000.0, "high": 1000.0} | quoted
    none = {"value": 0.0, "low": 0.0, "high": 0.0} | quoted
    path.write_text(
        json.dumps({"idle_w_per_core": idle, "busy_w_per_core": none, "dram_pj_per_byte": none})
    )
    server = start_server(energy="modelled", energy_constants=str(path))
    started_s = time.perf_counter()
    server.complete(PROMPT, max_tokens=2)
    seen = energies(server)
    low = seen["infopt_energy_range_joules_total", "low"]
    assert low == pytest.approx(seen["infopt_energy_range_joules_total", "high"])
    # idle power alone: no more than all cores for the time so far, start of the server included
    assert low > 0
    assert low / (1000.0 * usable_cores()) < time.perf_counter() - started_s + 60


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("- 1", "must be a mapping"),
        ("", "must be a mapping"),
        (b"\xff\xfe", "cannot be read"),
        ("{idle: 1", "cannot be read"),
        ("idle_w: {}", "Did you mean 'idle_w_per_core'"),
    ],
)
def test_constants_that_cannot_be_read_stop_the_start(tmp_path, text, words) -> None:
    path = tmp_path / "constants.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=words):
        read_constants(str(path))


def test_without_a_file_the_constants_are_those_of_the_literature() -> None:
    assert read_constants(None) == EnergyConstants()


def test_names_of_meters_are_those_of_the_package() -> None:
    assert get_args(serve_config.MeterName) == get_args(MeterName)
    with pytest.raises(ConfigError, match="energy 'wattmeter' is unknown"):
        ServeConfig(energy="wattmeter")
