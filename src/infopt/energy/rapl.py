"""Energy of processor packages and their memory (RAPL), found by zeus.

zeus knows where the counters are (in containers too), what they are called and how far they count,
and asks its daemon where one runs for users without privileges. The files themselves are read here:
zeus's own ``read`` starts a process per counter that watches for wrap-arounds, which would share
the cores with what is measured, and run the main module of a plain script a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infopt.energy.counters import Counter, unreadable
from infopt.energy.errors import CounterUnreadableError

POWERCAP = Path("/sys/class/powercap/intel-rapl")

_PERMISSION = (
    "Let this user read /sys/class/powercap/intel-rapl:*/energy_uj, or run zeus's daemon (zeusd)."
)


@dataclass(frozen=True, slots=True)
class RaplCounter:
    """One domain's ``energy_uj`` file.

    Attributes:
        name: Domain.
        path: The file.
        wrap_uj: Its range.
    """

    name: str
    path: Path
    wrap_uj: int | None
    update_s: float = 0.001

    def read_uj(self) -> int:
        """Return the count in microjoules."""
        try:
            return int(self.path.read_text("ascii"))
        except PermissionError as error:
            raise unreadable(self.name, "permission", str(error), _PERMISSION) from error
        except (OSError, ValueError) as error:
            raise unreadable(self.name, "absent", str(error)) from error


@dataclass(frozen=True, slots=True)
class DaemonCounter:
    """A domain that zeus's daemon reads for us; it takes care of wrap-arounds.

    Attributes:
        name: Domain.
        cpu: zeus's object of the package.
        key: ``cpu_mj`` or ``dram_mj``.
    """

    name: str
    cpu: Any
    key: str
    wrap_uj: int | None = None
    update_s: float = 0.001

    def read_uj(self) -> int:
        """Return the count in microjoules."""
        try:
            millijoules = getattr(self.cpu.get_total_energy_consumption(), self.key)
        except Exception as error:  # whatever a request to another process can raise
            raise unreadable(self.name, "absent", str(error)) from error
        if millijoules is None:
            raise unreadable(self.name, "absent", "zeusd gives no value")
        return round(millijoules * 1000)


def zeus_packages() -> Sequence[Any]:
    """Return zeus's objects of this machine's packages.

    Raises:
        CounterUnreadableError: zeus is missing, or finds no counters it may read.
    """
    try:
        from zeus.device.cpu import (  # pyright: ignore[reportMissingImports]
            get_cpus,
        )
        from zeus.device.cpu.common import (  # pyright: ignore[reportMissingImports]
            ZeusCPUNoPermissionError,
        )
        from zeus.exception import ZeusBaseError  # pyright: ignore[reportMissingImports]
    except ImportError:
        if not POWERCAP.exists():
            raise unreadable("package", "absent", f"no {POWERCAP}") from None
        raise unreadable(
            "package", "absent", "zeus is not installed", "pip install 'infopt[energy]'"
        ) from None
    try:
        return get_cpus().cpus
    except ZeusCPUNoPermissionError as error:
        raise unreadable("package", "permission", str(error), _PERMISSION) from error
    except (ZeusBaseError, OSError) as error:
        raise unreadable("package", "absent", str(error)) from error


def rapl_counters(
    packages: Callable[[], Sequence[Any]] = zeus_packages,
) -> tuple[list[Counter], dict[str, str]]:
    """Return the counters that can be read, and why the others cannot.

    Args:
        packages: Returns zeus's objects.
    """
    try:
        found = packages()
    except CounterUnreadableError as error:
        return [], {"package": str(error)}
    counters: list[Counter] = []
    missing: dict[str, str] = {}
    for index, cpu in enumerate(found):
        for name, counter in _domains(index, cpu).items():
            why = "absent" if counter is None else _why_not(counter)
            if counter is not None and why is None:
                counters.append(counter)
            else:
                missing[name] = why or "absent"
    return counters, missing


def _domains(index: int, cpu: Any) -> dict[str, Counter | None]:
    """Return package and memory of a socket."""
    names = {"cpu": f"package-{index}", "dram": f"dram-{index}"}
    if not hasattr(cpu, "rapl_file"):
        has_dram = cpu.supports_get_dram_energy_consumption()
        dram = DaemonCounter(names["dram"], cpu, "dram_mj") if has_dram else None
        return {names["cpu"]: DaemonCounter(names["cpu"], cpu, "cpu_mj"), names["dram"]: dram}
    return {
        names["cpu"]: _file_counter(names["cpu"], cpu.rapl_file),
        names["dram"]: None if cpu.dram is None else _file_counter(names["dram"], cpu.dram),
    }


def _file_counter(name: str, file: Any) -> RaplCounter:
    return RaplCounter(name, Path(file.energy_uj_path), int(file.max_energy_range_uj))


def _why_not(counter: Counter) -> str | None:
    """Try a counter; return why it cannot be read."""
    try:
        counter.read_uj()
    except CounterUnreadableError as error:
        return str(error)
    return None
