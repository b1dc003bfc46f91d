"""Energy in the pipeline: which meter a job uses, and the `energy` section of its records."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from infopt.bench.load_result import LoadResult
from infopt.energy import (
    NJ_PER_J,
    EnergyConstants,
    EnergyReading,
    MeterChoice,
    ModelledWork,
    RunEnergy,
    add_readings,
    choose_meter,
    idle_reading,
)
from infopt.results.record import NO_ENERGY

logger = logging.getLogger(__name__)

Section = dict[str, Any]

J_PER_TOKEN = "j_per_token"


def meter_of(options: Mapping[str, Any], device: str) -> MeterChoice:
    """Return the meter that the configuration's ``energy`` asks for.

    Args:
        options: Empty: the best there is.
        device: What runs the model.

    Raises:
        InfoptError: The meter that was named is not available, or a constant is impossible.
    """
    constants = EnergyConstants.from_dict(options.get("constants") or {})
    return choose_meter(device, options.get("meter", "auto"), constants=constants)


def idle_watts(choice: MeterChoice, options: Mapping[str, Any]) -> float | None:
    """Measure the power of doing nothing; None where nothing is measured or it cannot be.

    Args:
        choice: The meter; a modelled one has constants for this.
        options: The configuration's ``energy``; ``idle_s`` is how long.
    """
    seconds = options.get("idle_s", 0.0)
    if not seconds or choice.meter.source in (None, "modelled"):
        return None
    reading = idle_reading(choice.meter, seconds)
    if reading.watts is None:
        logger.warning("energy: idle power was not measured: %s", reading.reason)
    return reading.watts


def measured_j_per_token(result: LoadResult) -> float | None:
    """Return a run's joules per output token where they were measured, not modelled."""
    num_tokens = _num_output_tokens([result])
    reading = result.energy.reading if result.energy else None
    if reading is None or reading.joules is None or reading.is_derived or not num_tokens:
        return None
    return reading.joules / num_tokens


def energy_section(results: Sequence[LoadResult]) -> Section:
    """Return the energy of some runs together.

    Args:
        results: Runs of one arm, warm-up excluded; the energy of a whole run counts.
    """
    energies = [r.energy for r in results if r.energy is not None]
    if len(energies) < len(results) or not results:
        return dict(NO_ENERGY)
    total = add_readings([e.reading for e in energies])
    num_tokens = _num_output_tokens(results)
    num_requests = sum(r.status_counts["completed"] for r in results)
    section = reading_section(total, num_tokens, num_requests) | _better(energies[0].why_not)
    if total.joules is None:
        return section
    num_prompt = sum(r.num_prompt_tokens - r.num_cached_tokens for x in results for r in x.records)
    return section | _phases(energies, num_tokens, num_prompt)


def reading_section(total: EnergyReading, num_tokens: int, num_requests: int) -> Section:
    """Return the section of a window in which tokens and requests were served.

    Args:
        total: Energy of the window.
        num_tokens: Output tokens.
        num_requests: Completed requests.
    """
    if total.joules is None or not num_tokens or not num_requests:
        reason = total.reason or "no request was completed"
        return {**NO_ENERGY, "reason": reason, **_missing(total)}
    ranges = {}
    if total.low is not None and total.high is not None:
        ranges = {
            f"{name}_{end}": getattr(total, end) / count
            for name, count in (("j_per_token", num_tokens), ("j_per_request", num_requests))
            for end in ("low", "high")
        }
    return {
        "j_per_token": total.joules / num_tokens,
        "j_per_request": total.joules / num_requests,
        "source": total.source,
        "reason": None,
        "derived": total.is_derived,
        "joules": total.joules,
        "measured_s": total.seconds,
        "watts": total.watts,
        "interval_s": total.interval_s,
        **ranges,
        **_work(total.work, num_tokens),
        **_missing(total),
    }


def _phases(energies: Sequence[RunEnergy], num_tokens: int, num_prompt: int) -> Section:
    accounts = [e.account for e in energies if e.account is not None]
    prefill = sum(a.prefill_nj for a in accounts) / NJ_PER_J
    decode = sum(a.decode_nj for a in accounts) / NJ_PER_J
    names = sorted({a.split for a in accounts})
    return {
        "prefill_j_per_prompt_token": prefill / num_prompt if num_prompt and prefill else None,
        "decode_j_per_token": decode / num_tokens if decode else None,
        "idle_j": sum(a.idle_nj for a in accounts) / NJ_PER_J,
        "split": "+".join(names) or None,
    }


def _work(work: ModelledWork | None, num_tokens: int) -> Section:
    if work is None:
        return {}
    return {
        "idle_core_s_per_token": work.idle_core_s / num_tokens,
        "busy_core_s_per_token": work.busy_core_s / num_tokens,
        "dram_bytes_per_token": work.dram_bytes / num_tokens,
    }


def _missing(total: EnergyReading) -> Section:
    return {"excluded": _listed(total.missing)}


def _better(why_not: Mapping[str, str]) -> Section:
    return {"better_meters": _listed(why_not)}


def _listed(reasons: Mapping[str, str]) -> str | None:
    return "; ".join(f"{name}: {why}" for name, why in reasons.items()) or None


def _num_output_tokens(results: Sequence[LoadResult]) -> int:
    return sum(r.num_output_tokens for result in results for r in result.records)
