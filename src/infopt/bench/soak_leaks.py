"""What a server still holds when it has nothing to do, read off its metrics."""

from __future__ import annotations

MAX_GRAMMARS = 64
MAX_GROWTH_MIB = 50.0

_MUST_BE_ZERO = (
    *("infopt_requests_running", "infopt_requests_waiting", "infopt_kv_pages_used"),
    *("infopt_requests_tracked", "infopt_requests_published", "infopt_streams_open"),
    "infopt_http_requests_in_flight",
)
_MUST_NOT_GROW = ("infopt_event_loop_tasks", "process_open_fds")


def leaks(metrics: dict[str, dict[str, float]]) -> list[str]:
    """Return what a drained server still holds.

    Args:
        metrics: Before, after the first requests ("warm"), and "after" all of them.
    """
    before, warm, after = metrics["before"], metrics["warm"], metrics["after"]
    faults = [f"left over: {name} is {value:g}" for name, value in held(after).items()]
    faults += [f"grew: {name} from {old:g} to {new:g}" for name, old, new in grown(before, after)]
    if after["infopt_compiled_grammars"] > MAX_GRAMMARS:
        faults.append(f"{after['infopt_compiled_grammars']:g} grammars are kept")
    growth = growth_mib(warm, after)
    if growth is not None and growth > MAX_GROWTH_MIB:
        faults.append(f"resident memory grew by {growth:.1f} MiB")
    return faults


def growth_mib(old: dict[str, float], new: dict[str, float]) -> float | None:
    """Return by how much resident memory grew; None where the system does not say."""
    name = "process_resident_memory_bytes"
    return (new[name] - old[name]) / 2**20 if name in old and name in new else None


def held(metrics: dict[str, float]) -> dict[str, float]:
    """Return what a server without requests must not have, and has."""
    return {name: metrics[name] for name in _MUST_BE_ZERO if metrics[name]}


def grown(old: dict[str, float], new: dict[str, float]) -> list[tuple[str, float, float]]:
    """Return what became more: name, old and new value."""
    names = [name for name in _MUST_NOT_GROW if name in old]
    return [(name, old[name], new[name]) for name in names if new[name] > old[name]]
