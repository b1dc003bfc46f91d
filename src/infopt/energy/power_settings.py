"""A GPU's power cap and locked clocks, set so that they are always put back.

    with guarded(settings, state_file) as guard:
        guard.apply(PowerPoint(cap_w=400))
        ...                                  # the work
    # the settings are as they were

What was there before is written to ``state_file`` before anything is changed, and put back when the
block ends: by itself, by an exception, by SIGTERM or SIGINT. After a crash (SIGKILL, power cut) the
file is still there, and the next `guarded` or `recover` puts it back first.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from infopt.energy.errors import PowerControlError, PowerPermissionError
from infopt.results.files import write_json

logger = logging.getLogger(__name__)

_RESTORE_TRIES = 3
_SETTLE_S = 0.05
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """A setting to try; None leaves a value as it is.

    Attributes:
        cap_w: Power cap in watts.
        clock_mhz: Clock of the multiprocessors, locked.
    """

    cap_w: float | None = None
    clock_mhz: int | None = None

    @property
    def slug(self) -> str:
        """Name for records: ``cap-400w``, ``clock-1200mhz``, both, or ``default``."""
        parts = [f"cap-{self.cap_w:g}w"] if self.cap_w is not None else []
        parts += [f"clock-{self.clock_mhz}mhz"] if self.clock_mhz is not None else []
        return "-".join(parts) or "default"


@dataclass(frozen=True, slots=True)
class PowerState:
    """What is put back.

    Attributes:
        device: NVML's name of the board, so that a file is never applied to another one.
        cap_mw: Power cap in milliwatts.
    """

    device: str
    cap_mw: int


class PowerSettings(Protocol):
    """Reads and changes the settings of one board."""

    def state(self) -> PowerState:
        """Return what is set now."""
        ...

    def set_cap(self, milliwatts: int) -> None:
        """Set the power cap and check that it was taken."""
        ...

    def lock_clock(self, mhz: int) -> None:
        """Lock the clock."""
        ...

    def unlock_clock(self) -> None:
        """Let the board choose its clock."""
        ...


class PowerGuard:
    """Applies settings and puts them back.

    Args:
        settings: Of the board.
        before: What was set.
        state_file: Where that is kept until it is put back.
    """

    def __init__(self, settings: PowerSettings, before: PowerState, state_file: Path) -> None:
        """Change nothing yet."""
        self._settings, self._before, self._file = settings, before, state_file
        self._cap_mw, self._is_locked = before.cap_mw, False
        self.is_changed = False

    def apply(self, point: PowerPoint) -> None:
        """Set a point; what it leaves out goes back to what was there before.

        Raises:
            PowerPermissionError: This user may not.
            PowerControlError: The board refused, or took another value without a word.
        """
        if not self.is_changed:
            write_json(self._file, asdict(self._before))
        try:
            self._set_cap(self._before.cap_mw if point.cap_w is None else point.cap_w * 1000)
            self._set_clock(point.clock_mhz)
        finally:
            if not self.is_changed:
                self._file.unlink(missing_ok=True)

    def _set_cap(self, milliwatts: float) -> None:
        wanted = round(milliwatts)
        if wanted != self._cap_mw:
            self._change(lambda: self._settings.set_cap(wanted))
            self._cap_mw = wanted

    def _set_clock(self, mhz: int | None) -> None:
        if mhz is not None:
            self._change(lambda: self._settings.lock_clock(mhz))
        elif self._is_locked:
            self._change(self._settings.unlock_clock)
        self._is_locked = mhz is not None

    def _change(self, step: Callable[[], None]) -> None:
        """Change something; after any failure but a refusal it counts as changed."""
        before, self.is_changed = self.is_changed, True
        try:
            step()
        except PowerPermissionError:
            self.is_changed = before  # nothing was taken
            raise

    def restore(self) -> None:
        """Put everything back, trying again where that fails; the file goes last.

        Raises:
            PowerControlError: It cannot be put back; says what to type.
        """
        if not self.is_changed:
            return
        put_back(self._settings, self._before)
        self._file.unlink(missing_ok=True)
        self.is_changed = False


@contextmanager
def guarded(settings: PowerSettings, state_file: str | Path) -> Iterator[PowerGuard]:
    """Give a guard whose settings are put back whatever ends the block.

    Args:
        settings: Of the board.
        state_file: Where to keep what was there; one per board.

    Raises:
        PowerControlError: Nothing can be read, or it could not be put back.
    """
    path = Path(state_file)
    recover(settings, path)
    guard = PowerGuard(settings, settings.state(), path)
    with _signals_unwind() as leave:
        try:
            yield guard
        finally:
            leave.waits = True
            guard.restore()


def recover(settings: PowerSettings, state_file: str | Path) -> bool:
    """Put back what a run that crashed has left.

    Returns:
        Whether there was anything to put back.

    Raises:
        PowerControlError: The file is of another board, broken, or cannot be applied.
    """
    path = Path(state_file)
    if not path.exists():
        return False
    before = _read_state(path)
    now = settings.state()
    if now.device != before.device:
        raise PowerControlError(
            f"{path} holds the settings of {before.device}, this board is {now.device}.",
            field="state_file",
            value=before.device,
            remedy="Use one state file per board.",
        )
    logger.warning("an earlier run left changed power settings: they are put back")
    put_back(settings, before)
    path.unlink()
    return True


def put_back(
    settings: PowerSettings, before: PowerState, sleep: Callable[[float], object] = time.sleep
) -> None:
    """Unlock the clocks and set the cap as it was, trying each a few times.

    Raises:
        PowerControlError: One of them failed every time; the other was tried all the same.
    """
    steps = (settings.unlock_clock, lambda: settings.set_cap(before.cap_mw))
    errors = [e for step in steps if (e := _tried(step, sleep)) is not None]
    if errors:
        watts = before.cap_mw / 1000
        raise PowerControlError(
            f"The power settings of {before.device} could not be put back: {errors[0]}",
            field="power",
            value=before.cap_mw,
            remedy=f"As root: nvidia-smi --power-limit={watts:g}; nvidia-smi --reset-gpu-clocks.",
        ) from errors[0]


def _tried(step: Callable[[], None], sleep: Callable[[float], object]) -> Exception | None:
    error: Exception | None = None
    for attempt in range(_RESTORE_TRIES):
        try:
            step()
        except Exception as caught:  # whatever a driver raises, the other setting has its turn
            error = caught
            logger.warning("putting power settings back, try %d: %s", attempt + 1, caught)
            sleep(_SETTLE_S)
        else:
            return None
    return error


def _read_state(path: Path) -> PowerState:
    try:
        return PowerState(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise PowerControlError(
            f"{path} cannot be read: {error}.",
            field="state_file",
            value=str(path),
            remedy="Check the board with nvidia-smi -q -d POWER,CLOCK, then delete the file.",
        ) from error


class _Leave:
    """Handles signals: the first one unwinds the stack, what comes after it changes nothing.

    Attributes:
        number: The first signal that came.
        waits: Whether the board is being put back, which a signal must not break off.
    """

    def __init__(self) -> None:
        """Nothing has come."""
        self.number: int | None = None
        self.waits = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        del frame
        if self.number is not None:
            return
        self.number = number
        if not self.waits:
            raise SystemExit(128 + number)


@contextmanager
def _signals_unwind() -> Iterator[_Leave]:
    """Let SIGTERM and SIGINT unwind the stack: SIGTERM would end the process without `finally`."""
    leave = _Leave()
    if threading.current_thread() is not threading.main_thread():
        yield leave  # only the main thread may set handlers; its own unwinding reaches this one
        return
    before: dict[Any, Any] = {s: signal.signal(s, leave) for s in _SIGNALS}
    try:
        yield leave
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if leave.number is not None:  # it came while the board was put back after a good end
        raise SystemExit(128 + leave.number)


def permission_error(what: str, detail: str) -> PowerPermissionError:
    """Return the refusal of a user without privileges, with what would help."""
    return PowerPermissionError(
        f"{what}: not permitted ({detail}).",
        field="power",
        value=what,
        remedy="Run as root, or give the container CAP_SYS_ADMIN; or leave power.caps_w and "
        "power.clocks_mhz empty.",
    )
