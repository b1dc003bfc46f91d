"""`ServeLoad` and `ServeReport`: what ``infopt bench serve`` does and what it found."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from infopt.cli.load_options import LoadOptions
from infopt.errors import ConfigError, MeasurementError

if TYPE_CHECKING:
    from infopt.bench.http import HttpLoad, HttpLoadResult, HttpTarget
    from infopt.bench.load_sweep import SweepResult
    from infopt.bench.slo import SLO
    from infopt.bench.workload_types import WorkloadRequest

_WARMUP_SEED = 1_000_003
"""Added to the seed for warm-up requests: their prompts must not be in the measured ones' cache."""


@dataclass(frozen=True, slots=True)
class ServeLoad:
    """What is sent.

    Attributes:
        workload: ``{"kind": name, **options}``.
        slo: Objective that goodput is judged by.
        rates: Requests per second, rising; empty where the workload has its own arrivals.
        extra: Further fields of every request.
        options: How it is sent.
    """

    workload: Mapping[str, Any]
    slo: SLO
    rates: tuple[float, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    options: LoadOptions = field(default_factory=LoadOptions)

    def __post_init__(self) -> None:
        """Refuse options that would have no effect.

        Raises:
            ConfigError: Names the option.
        """
        if self.workload.get("kind") == "trace" and self.options.arrivals is not None:
            raise ConfigError(
                "A trace has its own arrivals.", field="arrivals", value=self.options.arrivals
            )
        if self.options.refine and len(self.rates) < 2:
            raise ConfigError(
                "--refine narrows what --rates brackets.",
                field="refine",
                value=self.options.refine,
            )

    def requests(self, rate: float | None, index: int, target: HttpTarget) -> list[WorkloadRequest]:
        """Return the requests of the ``index``-th rate.

        Each rate has a seed of its own: a server that has seen the prompts answers from its cache.
        """
        from infopt.bench.rates import at_rate, build_for

        spec = self.workload
        if rate is not None:
            spec = at_rate(spec, rate, arrivals=self.options.arrival_process)
        return build_for(
            spec,
            self.options.duration,
            tokenizer=target.tokenizer,
            seed=self.options.seed + index,
        )

    def warmup_requests(self, index: int, target: HttpTarget) -> list[WorkloadRequest]:
        """Return the requests sent before the ``index``-th rate."""
        from infopt.bench.workloads import build_workload

        if not self.options.warmup:
            return []
        spec = {**self.workload, "num_requests": self.options.warmup}
        seed = self.options.seed + index + _WARMUP_SEED
        return build_workload(spec, tokenizer=target.tokenizer, seed=seed)


@dataclass(frozen=True, slots=True)
class ServeReport:
    """What was found.

    Attributes:
        plan: What was sent.
        target: Where to.
        started: UTC, ISO 8601.
        results: Runs by rate (one run under 0 where the workload has its own arrivals).
        sweep: The rates against the objective; None where there were not several.
    """

    plan: ServeLoad
    target: HttpTarget
    started: str
    results: dict[float, HttpLoadResult]
    sweep: SweepResult | None

    def check(self) -> None:
        """Refuse a run in which nothing was answered.

        Raises:
            MeasurementError: Says how the first request failed.
        """
        records = [r for result in self.results.values() for r in result.records]
        if not any(r.status == "completed" for r in records):
            error = next((r.error for r in records if r.error), "cut by the end of the run")
            raise MeasurementError(
                f"None of {len(records)} requests was answered. The first: {error}",
                field="url",
                value=self.target.url,
            )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, each request included."""
        from infopt.results import code_identity

        return {
            "url": self.target.url,
            "model": self.target.model,
            "started": self.started,
            "commit": code_identity(),
            "workload": dict(self.plan.workload),
            "arrivals": self.plan.options.arrival_process,
            "seed": self.plan.options.seed,
            "runs": [
                {
                    "rate_per_s": rate or None,
                    **result.summary(self.plan.slo),
                    "requests": [request_facts(r) for r in result.http_records],
                }
                for rate, result in sorted(self.results.items())
            ],
            "sweep": self.sweep.to_dict() if self.sweep else None,
        }


def request_facts(record: Any) -> dict[str, Any]:
    """Return what happened to one request; times in seconds."""
    timing = record.timing
    return {
        "id": record.request.request_id,
        "arrival_s": record.request.arrival_s,
        "status": record.status,
        "error": record.error,
        "lag_s": None if record.ready_s is None else record.ready_s - record.scheduled_s,
        "ttft_s": timing.ttft_s,
        "tpot_s": timing.tpot_s,
        "e2e_s": timing.e2e_s,
        "num_prompt_tokens": record.num_prompt_tokens,
        "num_asked_tokens": record.request.max_tokens,
        "num_output_tokens": record.num_output_tokens,
    }


def measure_server(
    url: str, plan: ServeLoad, model: str | None, api_key: str | None, tokenizer: str | None
) -> ServeReport:
    """Connect, measure every rate, and judge.

    Raises:
        InfoptError: The server cannot be reached, serves no such model, or answers no warm-up.
    """
    from infopt.bench.http import connect

    made = load_tokenizer(tokenizer) if tokenizer else None
    with connect(url, model=model, api_key=api_key, tokenizer=made) as target:
        return measure_target(target, plan)


def measure_target(target: HttpTarget, plan: ServeLoad) -> ServeReport:
    """Measure every rate, and judge.

    Raises:
        InfoptError: No warm-up request was answered, or the workload is impossible.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    results: dict[float, HttpLoadResult] = {}
    load = http_load(plan, target)

    def measure(rate: float | None) -> HttpLoadResult:
        results[rate or 0.0] = _run(plan, load, rate, len(results))
        return results[rate or 0.0]

    found = None
    if len(plan.rates) > 1:
        from infopt.bench.load_sweep import sweep

        found = sweep(
            measure,
            plan.rates,
            plan.slo,
            target_share=plan.options.target_share,
            num_bisections=plan.options.refine,
        )
    else:
        measure(plan.rates[0] if plan.rates else None)
    return ServeReport(plan, target, started, results, found)


def http_load(plan: ServeLoad, target: HttpTarget) -> HttpLoad:
    """Return how requests are put."""
    from infopt.bench.http import HttpLoad

    return HttpLoad(
        target,
        endpoint=plan.options.endpoint,
        prompt_form=plan.options.prompt,
        respect_eos=plan.options.respect_eos,
        max_concurrency=plan.options.max_concurrency,
        timeout_s=plan.options.timeout,
        extra=plan.extra,
    )


def load_tokenizer(model: str) -> Any:
    """Return the tokenizer of a local or registered model.

    Raises:
        InfoptError: There is no such model, or it has no tokenizer.
    """
    from infopt.models.checkpoint import open_checkpoint
    from infopt.models.registry import resolve_model

    with open_checkpoint(resolve_model(model)) as checkpoint:
        found = checkpoint.tokenizer()
    if found is None:
        raise ConfigError(f"{model} has no tokenizer.", field="tokenizer", value=model)
    return found


def _run(plan: ServeLoad, load: HttpLoad, rate: float | None, index: int) -> HttpLoadResult:
    from infopt.bench.http import run_http_load

    requests = plan.requests(rate, index, load.target)
    warmup = plan.warmup_requests(index, load.target)
    with progress_bar(rate) as on_progress:
        return run_http_load(load, requests, warmup=warmup, on_progress=on_progress)


@contextmanager
def progress_bar(rate: float | None) -> Iterator[Any]:
    """Show finished, failed and running requests while a run lasts."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    what = "trace" if rate is None else f"{rate:g} requests/s"
    columns = (
        TextColumn("[bold]{task.description}[/]"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as bar:
        task = bar.add_task(what, total=None, state="warm-up")

        def show(now: Any) -> None:
            sent = f"{now.num_sent / now.elapsed_s:.1f}/s sent" if now.elapsed_s > 0 else ""
            state = (
                f"{now.num_finished} finished, {now.num_failed} failed, "
                f"{now.num_in_flight} in flight, {sent}"
            )
            ended = now.num_finished + now.num_failed
            bar.update(task, total=now.num_total, completed=ended, state=state)

        yield show
