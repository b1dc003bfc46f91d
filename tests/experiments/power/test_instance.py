"""The process of an instance: it ends with whoever started it, and its end is an error by name."""

from __future__ import annotations

import os
import signal

import pytest

from infopt.errors import MeasurementError
from infopt.experiments.power.instance import Instance, make_order, usable_core_ids


@pytest.fixture
def order(make_power_spec):
    spec = make_power_spec("cold_start")
    return make_order(spec, "none", spec.engine_config("none", num_threads=1))


def test_cores_are_those_of_this_process():
    assert len(usable_core_ids(1)) == 1
    assert set(usable_core_ids(None)) <= os.sched_getaffinity(0)
    assert len(usable_core_ids(10_000)) <= len(os.sched_getaffinity(0))


def test_a_process_is_pinned_answers_and_ends_with_its_pipe(order):
    cores = usable_core_ids(1)
    with Instance(order, cores) as instance:
        ready = instance.wait_until_ready()
        assert os.sched_getaffinity(instance.process.pid) == set(cores)
        result = instance.ask("run")
        assert len(result.records) == 4
        first, state = instance.ask("first")
        assert len(first.records) == 1
        assert state["cpu_s"] > ready["cpu_s"]
    assert instance.process.returncode == 0


def test_a_process_that_is_killed_is_an_error_that_names_it(order):
    with Instance(order, usable_core_ids(1)) as instance:
        instance.process.send_signal(signal.SIGKILL)
        with pytest.raises(MeasurementError, match=r"process of none ended with exit code -9"):
            instance.wait_until_ready()
