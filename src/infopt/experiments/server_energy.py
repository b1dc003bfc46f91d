"""The energy of a server in another process, read off its own ``/metrics`` before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from infopt.energy import EnergyReading
from infopt.experiments.energy import reading_section
from infopt.results.record import NO_ENERGY

_STEPS, _IDLE = "infopt_energy_joules_total", "infopt_energy_idle_joules_total"
_RANGE, _LOST = "infopt_energy_range_joules_total", "infopt_energy_lost_windows_total"
_TOKENS, _DONE = "infopt_generated_tokens_total", "infopt_completions_finished_total"


@dataclass(frozen=True, slots=True)
class ServerTotals:
    """What a server has counted.

    Attributes:
        source: Its meter; None where it does not meter.
        joules: Energy of steps and between them.
        low: The same with the constants of a model at their low ends.
        high: The same at their high ends.
        num_lost: Windows without energy.
        num_tokens: Output tokens, those of warm-up requests included.
        num_requests: Completions that ended.
    """

    source: str | None
    joules: float
    low: float
    high: float
    num_lost: float
    num_tokens: float
    num_requests: float


def read_totals(url: str, timeout_s: float = 10.0) -> ServerTotals:
    """Ask a server for its totals.

    Args:
        url: Its address, without a path.
        timeout_s: Longest wait.
    """
    answer = httpx.get(f"{url.rstrip('/')}/metrics", timeout=timeout_s)
    answer.raise_for_status()
    return parse_totals(answer.text)


def parse_totals(text: str) -> ServerTotals:
    """Read the totals from the text of ``/metrics``."""
    from prometheus_client.parser import text_string_to_metric_families

    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def total(name: str, **labels: str) -> float:
        wanted = labels.items()
        return sum(s.value for s in samples if s.name == name and wanted <= s.labels.items())

    sources = {s.labels["source"] for s in samples if s.name == _IDLE}
    return ServerTotals(
        source=next(iter(sources), None),
        joules=total(_STEPS) + total(_IDLE),
        low=total(_RANGE, end="low"),
        high=total(_RANGE, end="high"),
        num_lost=total(_LOST),
        num_tokens=total(_TOKENS),
        num_requests=total(_DONE),
    )


def server_energy_section(before: ServerTotals, after: ServerTotals, seconds: float) -> Any:
    """Return the energy section of what happened in between; warm-up requests count on both sides.

    Args:
        before: Totals at the start.
        after: Totals at the end.
        seconds: Time in between.
    """
    if after.source is None:
        return {**NO_ENERGY, "reason": "the server does not meter its energy"}
    joules, is_derived = after.joules - before.joules, after.source == "modelled"
    if after.num_lost > before.num_lost or joules <= 0:
        total = EnergyReading.none("the server could not read its meter", seconds)
    else:
        total = EnergyReading(
            after.source,  # type: ignore[arg-type]
            joules,
            seconds,
            low=after.low - before.low if is_derived else None,
            high=after.high - before.high if is_derived else None,
        )
    num_tokens = round(after.num_tokens - before.num_tokens)
    return reading_section(total, num_tokens, round(after.num_requests - before.num_requests))
