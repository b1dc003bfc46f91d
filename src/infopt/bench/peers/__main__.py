"""Compare infopt with other engines on this machine.

    python -m infopt.bench.peers --environments .peers --out docs/measurements/peers-cpu.json

Prompts of 128 random tokens, 64 decode steps, 1, 8 and 32 sequences. Engines take turns, round by
round; each of infopt's formats is divided by each peer's, pair by pair. `make peers` makes the
environments. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from infopt import __version__
from infopt.bench.claims import DEFAULT_MODEL
from infopt.bench.peers.arms import ARMS, Arm, Site
from infopt.bench.peers.quality import divergences
from infopt.bench.peers.table import show
from infopt.bench.peers.worker import Worker
from infopt.bench.stats import bootstrap_interval, paired_ratio
from infopt.errors import MeasurementError
from infopt.hardware import fingerprint, usable_cores
from infopt.machine_rates import memory_bandwidth
from infopt.results import write_json

PROMPT_TOKENS = 128
DECODE_TOKENS = 64
BATCHES = (1, 8, 32)
VOCABULARY = (5, 49000)

Samples = dict[str, dict[str, list[float]]]
"""Arm -> ``prefill`` and ``decode`` -> tokens per second, one per round."""


def measure(workers: Mapping[str, Worker], batch: int, repeats: int) -> Samples:
    """Let workers take turns; the order is turned round in every other round.

    Args:
        workers: By arm.
        batch: Sequences at once.
        repeats: Rounds that count; one before them does not.
    """
    samples: Samples = {name: {"prefill": [], "decode": []} for name in workers}
    for index in range(repeats + 1):
        names = list(workers) if index % 2 == 0 else list(workers)[::-1]
        rng = np.random.default_rng([batch, index])
        prompts = rng.integers(*VOCABULARY, size=(batch, PROMPT_TOKENS)).tolist()
        for name in names:
            times = workers[name].measure(prompts, DECODE_TOKENS)
            if index > 0:
                samples[name]["prefill"].append(batch * PROMPT_TOKENS / times["prefill_s"])
                samples[name]["decode"].append(batch * DECODE_TOKENS / times["decode_s"])
    return samples


def compare(arms: Sequence[Arm], samples: Samples) -> dict[str, Any]:
    """Return each arm's rates, and for ours the ratio to every peer, all with 95 % intervals."""
    rows: dict[str, Any] = {}
    for arm in arms:
        row: dict[str, Any] = {}
        for phase, rates in samples[arm.name].items():
            interval = bootstrap_interval(rates)
            row[phase] = {
                "tokens_per_s": interval.estimate,
                "low": interval.low,
                "high": interval.high,
                "samples": rates,
                "against": {
                    peer.name: _ratio(samples[peer.name][phase], rates)
                    for peer in arms
                    if arm.is_ours and not peer.is_ours
                },
            }
        rows[arm.name] = row
    return rows


def _ratio(peer: Sequence[float], ours: Sequence[float]) -> dict[str, Any]:
    ratio = paired_ratio(peer, ours, higher_is_better=True)
    return {
        "median": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "verdict": ratio.verdict,
    }


@contextlib.contextmanager
def workers_of(site: Site, arms: Sequence[Arm]) -> Iterator[dict[str, Worker]]:
    """Start one worker per arm and end them all afterwards."""
    with contextlib.ExitStack() as stack:
        yield {arm.name: stack.enter_context(site.start(arm)) for arm in arms}


def run(site: Site, arms: Sequence[Arm], repeats: int, batches: Sequence[int]) -> dict[str, Any]:
    """Measure all arms and return plain data."""
    report: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "infopt": __version__,
        "model": site.model,
        "hardware": fingerprint(),
        "memory_bytes_per_s": memory_bandwidth("cpu", site.threads),
        "threads": site.threads,
        "prompt_tokens": PROMPT_TOKENS,
        "decode_tokens": DECODE_TOKENS,
        "formats": {a.name: {"weights": a.weights, "activations": a.activations} for a in arms},
    }
    with workers_of(site, arms) as workers:
        report["divergence"] = divergences(site, workers)
        report["batches"] = {
            str(batch): compare(arms, measure(workers, batch, repeats)) for batch in batches
        }
    return report


def chosen(site: Site, only: Sequence[str] | None) -> tuple[list[Arm], list[str]]:
    """Return the arms that can run, and why the others cannot.

    Raises:
        MeasurementError: If a named arm does not exist, or nothing can run.
    """
    unknown = set(only or ()) - {arm.name for arm in ARMS}
    if unknown:
        raise MeasurementError(
            f"Unknown arm {sorted(unknown)[0]!r}.",
            field="only",
            value=sorted(unknown)[0],
            remedy=f"Arms: {', '.join(arm.name for arm in ARMS)}.",
        )
    wanted = [arm for arm in ARMS if not only or arm.name in only]
    missing = [arm.name for arm in wanted if site.python(arm.engine) is None]
    notes = [f"{name} is left out: run `make peers`" for name in missing]
    return [arm for arm in wanted if arm.name not in missing], notes


def main() -> None:
    """Measure, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m infopt.bench.peers", description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--environments", type=Path, default=Path(".peers"))
    parser.add_argument("--folder", type=Path, help="working folder (default: a temporary one)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--only", nargs="+", metavar="ARM", help="measure these arms")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--out", type=Path, default=Path("peers-cpu.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        site = Site(options.model, folder, options.environments, options.threads)
        arms, notes = chosen(site, options.only)
        site.export()
        report = run(site, arms, options.repeats, options.batches)
    report["left_out"] = notes
    write_json(options.out, report)
    show(json.loads(options.out.read_text()))


if __name__ == "__main__":
    main()
