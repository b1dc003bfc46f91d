"""A short soak: requests of every kind at once, then nothing is left and no answer was wrong."""

from __future__ import annotations

from typing import Any

import pytest

from infopt.bench import soak_run
from infopt.bench.raw_http import Address
from infopt.bench.soak_mix import make_request
from infopt.bench.soak_request import MixOptions
from infopt.bench.soak_run import Soak, SoakOptions, SoakReport

MIX = MixOptions()
ENGINE = {
    "max_model_len": MIX.max_model_len,
    "max_num_seqs": 12,
    "num_kv_pages": 136,
    "block_size": 4,
}


def address(server: Any) -> Address:
    return Address(*server.server.address)


@pytest.fixture
def target(start_server):
    return start_server(ENGINE, max_body_bytes=MIX.max_body_bytes)


@pytest.fixture
def reference(start_server):
    return start_server(ENGINE | {"enable_prefix_caching": False})


def soak(target: Any, reference: Any, **options: Any) -> SoakReport:
    return Soak(address(target), SoakOptions(**options)).run(address(reference))


def test_short_form(target, reference):
    report = soak(target, reference, num_requests=150, num_greedy=25, num_seeded=5)
    assert not report.faults
    assert report.num_compared == 30
    assert sum(report.kinds.values()) == 150
    assert report.statuses["200"] > 100
    assert report.statuses["left"] > 5
    assert report.statuses["400"] > 3
    engine = target.engine
    assert engine.stats.num_preemptions, "the pool was never short: the test tries too little"
    assert engine.stats.num_finished["abort"]
    target.wait_idle()


def test_a_leak_is_found(target, reference, monkeypatch):
    class Leaky(set):
        def discard(self, _: Any) -> None:
            pass

    monkeypatch.setattr(soak_run, "_DRAIN_S", 0.1)
    target.service._streams = Leaky()
    faults = soak(target, reference, num_requests=20, num_greedy=0, num_seeded=0).faults
    assert len(faults) == 1
    assert faults[0].startswith("left over: infopt_streams_open is ")


def test_a_wrong_answer_is_found(target, start_server, make_engine, tiny_model_dir):
    """Other weights give other answers: the comparison is of what was computed."""
    from infopt.config import EngineConfig
    from infopt.engine.loader import build_engine

    config = EngineConfig(model=str(tiny_model_dir(seed=1)), dtype="float32")
    other = start_server(build_engine(config))
    report = soak(target, other, num_requests=30, num_greedy=5, num_seeded=0)
    assert any(": alone: [" in fault for fault in report.faults)
    assert not any(": again: " in fault for fault in report.faults)


def test_a_failing_step_is_found(target, reference, monkeypatch):
    """An answer that ends with an error is no answer, streamed or not."""
    hidden, calls = target.engine.runner.hidden, []

    def fail_once(ctx: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("broken on purpose")
        return hidden(ctx)

    monkeypatch.setattr(target.engine.runner, "hidden", fail_once)
    report = soak(target, reference, num_requests=30, num_greedy=0, num_seeded=0)
    assert any("engine_failed" in fault for fault in report.faults)


def test_the_short_form_has_requests_of_most_kinds():
    made = [make_request(index, 0, MIX) for index in range(150)]
    assert {r.manner for r in made} == {"read", "read slowly", "hang up"}
    assert len({r.kind for r in made}) >= 17
