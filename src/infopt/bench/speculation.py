"""Measures what speculation gains, paired and with intervals, over kinds of traffic and batches.

    python -m infopt.bench.speculation --out build/speculation.json
    python -m infopt.bench.speculation --quick          # edit at one sequence alone

Each method takes turns with the same engine without guesses. The report holds, per cell, the ratio
with its interval, acceptance, costs and the formula's prediction, and for every method whether it
lost anywhere. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from infopt.bench.speculation_cells import Cell, CellResult, Pool, measure_cell, sort_requests
from infopt.config import EngineConfig
from infopt.hardware import fingerprint
from infopt.llm import LLM
from infopt.results import write_json

DEFAULT_MODEL = "smollm2-135m-instruct-q4_1"
WORKLOADS: Mapping[str, Mapping[str, Any]] = {
    "edit": {"kind": "edit", "text_tokens": 128, "output_tokens": 96},
    "code": {"kind": "edit-code", "text_tokens": 128, "output_tokens": 96},
    "summarize": {"kind": "summarize", "text_tokens": 256, "output_tokens": 64},
    "chat": {"kind": "chat", "output_tokens": 96},
}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "ngram": {"method": "ngram"},
    "suffix": {"method": "suffix"},
    "auto": {"method": "auto"},
}
FORMULA_TOLERANCE = 0.1


def make_cells(
    workloads: Iterable[str], batches: Iterable[int], temperatures: Iterable[float]
) -> list[Cell]:
    """Return all combinations."""
    temperatures, batches = list(temperatures), list(batches)
    return [Cell(w, b, t) for w in workloads for t in temperatures for b in batches]


def make_pools(
    reference: LLM, cells: Sequence[Cell], workloads: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[str, float], Pool]:
    """Answer the requests of all cells once and set looping ones apart.

    Returns:
        A pool per workload and temperature.
    """
    pools: dict[tuple[str, float], Pool] = {}
    for cell in cells:
        key = cell.workload, cell.temperature
        if key not in pools:
            needed = max(c.num_requests for c in cells if (c.workload, c.temperature) == key)
            pools[key] = sort_requests(reference, workloads[cell.workload], cell, needed)
    return pools


def measure_method(
    reference: LLM,
    llm: LLM,
    cells: Sequence[Cell],
    pools: Mapping[tuple[str, float], Pool],
    repeats: int,
) -> list[CellResult]:
    """Measure the cells that have requests."""
    out = []
    for cell in cells:
        requests = pools[cell.workload, cell.temperature].take(cell)
        if requests:
            out.append(measure_cell(reference, llm, cell, requests, repeats))
            print(_line(llm.config.speculative or {}, out[-1]), flush=True)
    return out


def summarize(results: Mapping[str, Sequence[CellResult]]) -> dict[str, Any]:
    """Return per method: cells won, lost, undecided, and how far from the formula they came."""
    return {
        method: {
            "cells": [_plain(r) for r in cells],
            **{
                verdict: [_name(r.cell) for r in cells if r.ratio.verdict == verdict]
                for verdict in ("better", "worse", "undecided")
            },
            "far_from_formula": [_name(r.cell) for r in cells if not near_formula(r)],
        }
        for method, cells in results.items()
    }


def near_formula(result: CellResult) -> bool:
    """Tell whether the measured gain is within 10 % of the formula's at the measured costs."""
    return abs(result.ratio.median / result.predicted - 1) <= FORMULA_TOLERANCE


def _plain(result: CellResult) -> dict[str, Any]:
    return dataclasses.asdict(result)


def _name(cell: Cell) -> str:
    return f"{cell.workload}, {cell.batch} at once, temperature {cell.temperature:g}"


def _line(options: Mapping[str, Any], result: CellResult) -> str:
    ratio, alpha = result.ratio, result.alpha
    return (
        f"{options.get('method', 'off'):>12}  {_name(result.cell):<42} {ratio.median:5.2f}x "
        f"[{ratio.low:.2f}, {ratio.high:.2f}] {ratio.verdict:<9} formula "
        f"{result.predicted:5.2f}x  alpha {'-' if alpha is None else f'{alpha:.2f}'}  verify "
        f"{result.verify_cost:.2f}  draft {result.draft_cost:.3f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the report."""
    options = _parse(arguments)
    common: dict[str, Any] = {
        "dtype": options.dtype,
        "quantization": options.quantization,
        "max_model_len": 1024,
        "kv_cache_memory_gib": 0.5,
        "max_num_seqs": max(options.batches),
    }
    cells = make_cells(options.workloads, options.batches, options.temperatures)
    results: dict[str, list[CellResult]] = {}
    with LLM(config=EngineConfig(options.model, **common)) as reference:
        pools = make_pools(reference, cells, WORKLOADS)
        for (workload, temperature), pool in pools.items():
            total = len(pool.sound) + len(pool.looping)
            print(f"{workload}, temperature {temperature:g}: {len(pool.looping)} of {total} loop")
        for method in options.methods:
            config = EngineConfig(options.model, speculative=METHODS[method], **common)
            with LLM(config=config) as llm:
                results[method] = measure_method(reference, llm, cells, pools, options.repeats)
    report = {
        "model": options.model,
        "engine": common,
        "hardware": fingerprint(),
        "workloads": {name: dict(WORKLOADS[name]) for name in options.workloads},
        "methods": summarize(results),
    }
    if options.out is not None:
        write_json(options.out, report)
    brief = {m: {k: v for k, v in r.items() if k != "cells"} for m, r in report["methods"].items()}
    print(json.dumps(brief, indent=2))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="edit at one sequence alone")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 8, 32])
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    options = parser.parse_args(arguments)
    if options.quick:
        options.workloads, options.batches, options.temperatures = ["edit"], [1], [0.0]
    return options


if __name__ == "__main__":
    main()
