"""Soaks a server: thousands of requests of every kind at once, then looks for what is left.

    python -m infopt.bench.soak MODEL --requests 2000 --out report.json

Two servers run on the same float32 weights. The first gets the mix of `infopt.bench.soak_mix` from
many clients at once, with a pool of pages so small that requests wait and lose their pages. The
second computes a sample of the same requests one at a time, without a prefix cache: an answer must
not depend on what ran beside it. The first must answer the sample in the same way once more when
all is over. What must hold:

- every answer is right for its kind (`infopt.bench.soak_checks`), no request gets a 5xx;
- afterwards nothing is running, waiting, tracked, open or in flight, and no page is in use;
- the event loop has no more tasks, the process no more open files than before, and at most 64
  grammars are kept;
- resident memory is at most 50 MiB above its level after the first 200 requests.

Exit code 0 if all of it holds, else 1 and a list of what does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infopt import __version__
from infopt.bench.server_process import ServerProcess, serve
from infopt.bench.soak_leaks import growth_mib
from infopt.bench.soak_request import MixOptions
from infopt.bench.soak_run import Soak, SoakOptions, SoakReport
from infopt.results import write_json

DEFAULT_MODEL = "smollm2-135m-instruct-q4_1"


def server_arguments(model: str, mix: MixOptions) -> list[str]:
    """Return how ``infopt serve`` is started: few places and a pool that is soon touched whole.

    Memory then has its level within the first requests, and requests wait and are preempted.
    """
    limits = {
        "--dtype": "float32",
        "--max-model-len": mix.max_model_len,
        "--max-num-seqs": 12,
        "--max-num-batched-tokens": 256,
        "--num-kv-pages": 136,
        "--block-size": 4,
        "--max-body-bytes": mix.max_body_bytes,
    }
    return [model, *(str(part) for pair in limits.items() for part in pair)]


def soak_model(model: str, options: SoakOptions) -> SoakReport:
    """Start both servers on a model and soak the first."""
    arguments = server_arguments(model, options.mix)
    alone = [*arguments, "--no-enable-prefix-caching"]
    with serve(*arguments) as target, serve(*alone) as reference:
        report = Soak(target.address, options).run(reference.address)
        report.faults += _complaints(target)
    return report


def _complaints(server: ServerProcess) -> list[str]:
    """Return tracebacks in what the server has written."""
    return ["a traceback in the server's log:\n" + server.words] * ("Traceback" in server.words)


def describe(report: SoakReport) -> str:
    """Return the report in words."""
    growth = growth_mib(report.metrics["warm"], report.metrics["after"])
    lines = [
        f"{sum(report.kinds.values())} requests in {report.duration_s:.0f} s: "
        + ", ".join(f"{count} x {status}" for status, count in sorted(report.statuses.items())),
        f"{report.num_compared} answers computed alone and again",
        "memory: " + (f"{growth:+.1f} MiB" if growth is not None else "not known on this system"),
        *report.faults,
        f"{len(report.faults)} faults" if report.faults else "no fault",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak a model and return the exit code."""
    usual = SoakOptions()
    parser = argparse.ArgumentParser(prog="infopt.bench.soak", description="Soaks a server.")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--requests", type=int, default=usual.num_requests)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--out", type=Path, help="write the report as JSON")
    given = parser.parse_args(arguments)
    report = soak_model(given.model, SoakOptions(num_requests=given.requests, seed=given.seed))
    print(describe(report))
    if given.out is not None:
        _write(given.out, given.model, given.seed, report)
    return 1 if report.faults else 0


def _write(path: Path, model: str, seed: int, report: SoakReport) -> None:
    from infopt.hardware import fingerprint

    document: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "infopt": __version__,
        "model": model,
        "seed": seed,
        "hardware": fingerprint(),
        "faults": report.faults,
        "kinds": dict(report.kinds),
        "statuses": dict(report.statuses),
        "num_compared": report.num_compared,
        "duration_s": report.duration_s,
        "growth_mib": growth_mib(report.metrics["warm"], report.metrics["after"]),
        "metrics": report.metrics,
    }
    write_json(path, document)


if __name__ == "__main__":
    sys.exit(main())
