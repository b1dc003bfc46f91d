"""The records, table and choice of the stage `serving`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infopt.bench.http import HttpLoadResult
from infopt.bench.load_sweep import SweepRow
from infopt.bench.slo import SLO
from infopt.bench.stats import Interval
from infopt.experiments.costs import price_records
from infopt.experiments.tables import collect, retire_others
from infopt.experiments.yaml_files import write_yaml
from infopt.results import read_json, write_table


def serving_sections(
    result: HttpLoadResult, row: SweepRow, slo: SLO, slo_name: str
) -> dict[str, Any]:
    """Return what a load over HTTP says about one rate; memory and ops are the server's secret.

    Args:
        result: The run.
        row: Its verdict.
        slo: The objective.
        slo_name: Its preset, or ``custom``.
    """
    report = result.evaluate(slo)
    timings = result.timings
    return {
        "latency": result.latency.to_dict(),
        "throughput": _throughput(result),
        "slo": {"name": slo_name, "limits": slo.to_dict(), **report.to_dict()},
        "intervals": {
            "slo.goodput_share": _interval(row.share, 1.0),
            "slo.goodput_requests_per_s": _interval(
                row.share, row.num_requests / result.duration_s
            ),
        },
        "samples": {
            "arrival_s": [r.request.arrival_s for r in result.records],
            **{n: [getattr(t, n) for t in timings] for n in ("ttft_s", "tpot_s", "e2e_s")},
        },
        "extra": _facts(result, row),
    }


def collect_serving(
    manifest_path: str | Path,
    *,
    results_dir: str | Path,
    table_path: str | Path,
    chosen_path: str | Path,
    prices: Mapping[str, Any] | None = None,
) -> None:
    """Write the table of the stage and what follows from it, for whoever serves.

    Args:
        manifest_path: Manifest of the load sweep.
        results_dir: Folder of all results.
        table_path: Where the table goes.
        chosen_path: Where the saturation point goes. Its ``engine`` is empty: nothing was chosen.
        prices: The configuration's ``prices``; None leaves the records' cost as it is.
    """
    manifest = read_json(manifest_path)
    retire_others([manifest], results_dir)
    price_records([manifest], results_dir, prices)
    write_table(collect([manifest], results_dir), table_path)
    chosen = {"stage": manifest["stage"], "engine": {}, "saturation": manifest["saturation"]}
    write_yaml(chosen, chosen_path)


def _throughput(result: HttpLoadResult) -> dict[str, Any]:
    figures = result.summary()
    return {
        "output_tokens_per_s": figures["throughput_tokens_per_s"],
        "prompt_tokens_per_s": figures["prompt_throughput_tokens_per_s"],
        "requests_per_s": figures["request_rate_per_s"],
        "offered_requests_per_s": figures["offered_rate_per_s"],
        "num_requests": figures["num_requests"],
        "num_completed": figures["num_completed"],
        "num_output_tokens": figures["num_output_tokens"],
        "num_prompt_tokens": figures["num_prompt_tokens"],
        "measured_s": result.duration_s,
    }


def _facts(result: HttpLoadResult, row: SweepRow) -> dict[str, Any]:
    client = result.client_figures()
    return {
        "transport": "http",
        "candidate": f"{row.rate_per_s:.3g}/s",
        "rate_per_s": row.rate_per_s,
        "achieved_requests_per_s": row.achieved_rate_per_s,
        "is_good": row.is_good,
        "is_certain": row.is_certain,
        "queue_grows": row.queue_grows,
        "num_failed": row.num_failed,
        "max_client_lag_s": client["max_lag_s"],
        "num_estimated_chunks": client["num_estimated_chunks"],
        "num_asked_tokens": client["num_asked_tokens"],
        "prompt_form": client["prompt_form"],
        "warnings": "; ".join(row.warnings) or None,
    }


def _interval(share: Interval, factor: float) -> dict[str, Any]:
    values = {"estimate": share.estimate, "low": share.low, "high": share.high}
    return {**{name: value * factor for name, value in values.items()}, "count": share.count}
