"""Devices for measuring jobs: one job at a time on each, whoever starts it."""

import os
import subprocess
import sys
import threading

import pytest

from infopt.errors import MeasurementError
from infopt.experiments.devices import GPU_IDS_VARIABLE, available_gpus, measuring_device


@pytest.fixture
def no_gpu_settings(monkeypatch):
    monkeypatch.delenv(GPU_IDS_VARIABLE, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_two_jobs_get_two_gpus_and_the_third_waits(tmp_path):
    """Pins: GPUs were counted but not handed out, and parallel jobs all took the first."""
    with (
        measuring_device(["0", "1"], lock_dir=tmp_path) as first,
        measuring_device(["0", "1"], lock_dir=tmp_path) as second,
    ):
        assert {first.gpu_id, second.gpu_id} == {"0", "1"}
        assert os.environ["CUDA_VISIBLE_DEVICES"] == second.gpu_id
        with (
            pytest.raises(MeasurementError, match="gpu-0, gpu-1 busy"),
            measuring_device(["0", "1"], lock_dir=tmp_path, timeout_s=0),
        ):
            pass
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_on_a_cpu_the_second_job_waits_for_the_first(tmp_path):
    order = []
    holding = threading.Event()

    def second():
        holding.wait(10)
        with measuring_device([], lock_dir=tmp_path) as device:
            order.append(device)

    waiting = threading.Thread(target=second)
    waiting.start()
    with measuring_device([], lock_dir=tmp_path) as device:
        holding.set()
        waiting.join(0.5)
        assert not order
        order.append(device)
    waiting.join(10)
    assert [d.name for d in order] == ["cpu", "cpu"]
    assert order[1].waited_s > 0


def test_a_killed_job_frees_its_device(tmp_path):
    code = (
        "import os, sys\n"
        "from infopt.experiments.devices import measuring_device\n"
        "with measuring_device([], lock_dir=sys.argv[1]):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -9
    with measuring_device([], lock_dir=tmp_path, timeout_s=0) as device:
        assert device.name == "cpu"


@pytest.mark.parametrize(
    ("variable", "value", "num_gpus", "expected"),
    [
        (None, None, 0, []),
        (None, None, 2, ["0", "1"]),
        ("CUDA_VISIBLE_DEVICES", "3,5", 2, ["3", "5"]),
        ("CUDA_VISIBLE_DEVICES", "3,5", 0, []),  # set, but there is no GPU
        ("CUDA_VISIBLE_DEVICES", "", 0, []),
        (GPU_IDS_VARIABLE, "0, 1", 0, ["0", "1"]),
        (GPU_IDS_VARIABLE, "", 4, []),
    ],
)
def test_which_gpus_there_are(no_gpu_settings, monkeypatch, variable, value, num_gpus, expected):
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_gpus)
    if variable:
        monkeypatch.setenv(variable, value)
    assert available_gpus() == expected


def test_the_callers_choice_of_gpus_is_restored(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    with measuring_device(["7"], lock_dir=tmp_path):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"


def test_a_user_without_a_name_can_measure(tmp_path, monkeypatch, no_gpu_settings):
    """Pins: in a container whose user is a bare number, the first measurement was a KeyError."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with measuring_device([]) as device:
        assert device.name == "cpu"
    assert (tmp_path / "infopt-devices-54321").is_dir()
