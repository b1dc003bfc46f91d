"""Hands out devices to measuring jobs: one job per GPU, one job at all on a CPU.

Snakemake counts GPUs but does not say which one a job got, and two runs of it know nothing of each
other. A lock file per device does both: it belongs to this user on this machine, the system frees
it when its process dies, and whoever finds all of them taken waits.

    with measuring_device() as device:
        ...  # CUDA_VISIBLE_DEVICES is set; device.name goes into the record
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infopt.errors import MeasurementError

logger = logging.getLogger(__name__)

GPU_IDS_VARIABLE = "INFOPT_GPU_IDS"
"""Environment variable: ids that may be handed out ("0,1"; "" for the CPU); default is all."""

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Device:
    """A device that belongs to one job.

    Attributes:
        gpu_id: Id as in ``CUDA_VISIBLE_DEVICES``; None on the CPU.
        waited_s: How long the job waited for it.
    """

    gpu_id: str | None
    waited_s: float = 0.0

    @property
    def name(self) -> str:
        """``cpu`` or ``gpu-<id>``."""
        return "cpu" if self.gpu_id is None else f"gpu-{self.gpu_id}"


@contextmanager
def measuring_device(
    gpu_ids: Sequence[str] | None = None,
    *,
    timeout_s: float = 3600.0,
    lock_dir: str | Path | None = None,
) -> Iterator[Device]:
    """Wait for a device nobody measures on, and keep it for the ``with`` block.

    Args:
        gpu_ids: Ids to choose from; default is what the environment allows and the machine has.
        timeout_s: Longest wait in seconds.
        lock_dir: Folder of the lock files; default is one per user in the temporary folder.

    Raises:
        MeasurementError: Every device stayed busy for ``timeout_s``.
    """
    ids: list[str | None] = [*(available_gpus() if gpu_ids is None else gpu_ids)] or [None]
    folder = Path(lock_dir) if lock_dir else _default_lock_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    device, lock = _wait(ids, folder, timeout_s)
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        if device.gpu_id is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device.gpu_id
        yield device
    finally:
        if device.gpu_id is not None:
            _restore("CUDA_VISIBLE_DEVICES", before)
        os.close(lock)  # which frees it


def available_gpus() -> list[str]:
    """Return the ids of the GPUs this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    for variable in (GPU_IDS_VARIABLE, "CUDA_VISIBLE_DEVICES"):
        text = os.environ.get(variable)
        if text is None:
            continue
        ids = [part.strip() for part in text.split(",") if part.strip()]
        if variable == GPU_IDS_VARIABLE or not ids:
            return ids
        return ids if _num_gpus() else []
    return [str(i) for i in range(_num_gpus())]


def _num_gpus() -> int:
    import torch

    # Asks the driver without opening a context, so the choice of a GPU still comes in time.
    return torch.cuda.device_count()


def _default_lock_dir() -> Path:
    # A number and not a name: in a container a user often has none.
    return Path(tempfile.gettempdir(), f"infopt-devices-{os.getuid()}")


def _wait(ids: list[str | None], folder: Path, timeout_s: float) -> tuple[Device, int]:
    start_s = time.monotonic()
    announced = False
    while True:
        for gpu_id in ids:
            lock = _try_lock(folder / f"{Device(gpu_id).name}.lock")
            if lock is not None:
                return Device(gpu_id, time.monotonic() - start_s), lock
        if time.monotonic() - start_s > timeout_s:
            raise MeasurementError(
                f"Another measurement kept {_names(ids)} busy for {timeout_s:g} s.",
                field="measure_slots",
                value=_names(ids),
                remedy="End it, or run one pipeline at a time.",
            )
        if not announced:
            logger.info("waiting: another measurement runs on %s", _names(ids))
            announced = True
        time.sleep(_POLL_S)


def _names(ids: Sequence[str | None]) -> str:
    return ", ".join(Device(i).name for i in ids)


def _try_lock(path: Path) -> int | None:
    """Return an open descriptor that holds the lock, or None while another process has it."""
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _restore(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value
