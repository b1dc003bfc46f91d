"""``infopt bench``: throughput and latency of a configuration, or of several in pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from infopt.cli.bench_serve import bench_serve
from infopt.cli.bench_workloads import SloOption, workload_spec
from infopt.cli.console import messages, note, output, print_json
from infopt.cli.engine import ENGINE_OPTIONS, ConfigOption, ModelOption, build_config
from infopt.cli.models import RegistryOption, load_registry
from infopt.cli.options import add_options
from infopt.cli.values import parse_arm, parse_spec
from infopt.config import EngineConfig
from infopt.errors import ConfigError

if TYPE_CHECKING:
    from infopt.cli.bench_arms import BenchReport

SINGLE_REPEATS = 3
PAIRED_REPEATS = 6  # fewer pairs never give a verdict


@add_options(engine=ENGINE_OPTIONS)
def bench(
    *,
    ctx: typer.Context,
    model: ModelOption = None,
    config: ConfigOption = None,
    registry: RegistryOption = None,
    workload: Annotated[str, typer.Option(help="Kind of workload.")] = "synthetic",
    num_requests: Annotated[int, typer.Option(help="Requests per round.", min=1)] = 32,
    workload_option: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="Option of the workload: prompt_tokens=256, output_tokens=32, ...",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Requests per second (Poisson), sent whether or not the engine keeps up.",
            show_default="all at once",
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            help="Measured rounds.",
            min=1,
            show_default=f"{SINGLE_REPEATS}, with --arm {PAIRED_REPEATS}",
        ),
    ] = None,
    workload_seed: Annotated[int, typer.Option(help="Seed of the workload.", min=0)] = 0,
    slo: SloOption = "chat",
    arm: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            metavar="NAME=KEY=VALUE,...",
            help="Engine options of one configuration to compare; repeat it. The first is the "
            "reference, and the arms take turns.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the run records as JSON instead of a table.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Results folder to write the run records to (as runs/bench/*.json).",
            show_default=False,
        ),
    ] = None,
    engine: dict[str, Any],
) -> None:
    """Measure throughput and latency of one configuration, or compare several in pairs."""
    if ctx.invoked_subcommand is not None:
        _refuse_options(ctx)
        return
    configs = _arm_configs(build_config(model, config, engine), arm or [])
    load_registry(registry)

    from infopt.bench.slo import SLO
    from infopt.cli.bench_arms import BenchPlan, run_bench

    plan = BenchPlan(
        workload=_workload_spec(workload, num_requests, workload_option or [], rate),
        slo=SLO.from_spec(parse_spec(slo, "slo")),
        slo_name="custom" if "=" in slo else slo,
        seed=workload_seed,
        repeats=repeats or (PAIRED_REPEATS if arm else SINGLE_REPEATS),
        open_loop=rate is not None,
    )
    report = run_bench(configs, plan)
    if as_json:
        documents = [record.to_dict() for record in report.records.values()]
        print_json(documents if arm else documents[0])
    else:
        _print_report(report)
    for record in report.records.values() if save else ():
        note(f"wrote {record.write(save or '')}")


def _print_report(report: BenchReport) -> None:
    from infopt.cli.bench_table import bench_table, facts, remarks

    output().print(bench_table(report))
    for line in facts(report):
        output().print(line, soft_wrap=True)
    for remark in remarks(report):
        messages().print(f"[yellow]note:[/] {escape(remark)}", soft_wrap=True)


def _arm_configs(base: EngineConfig, arms: list[str]) -> dict[str, EngineConfig]:
    """Return the configurations by name; without ``--arm`` there is one, called ``default``."""
    configs: dict[str, EngineConfig] = {}
    for text in arms:
        name, changes = parse_arm(text)
        if name in configs:
            raise ConfigError(f"Two arms are called {name!r}.", field="arm", value=name)
        configs[name] = base.replace(**changes)
    return configs or {"default": base}


def _workload_spec(
    kind: str, num_requests: int, options: list[str], rate: float | None
) -> dict[str, Any]:
    spec = workload_spec(kind, num_requests, options)
    return spec if rate is None else {**spec, "arrivals": {"kind": "poisson", "rate": rate}}


def _refuse_options(ctx: typer.Context) -> None:
    """Refuse options in front of a sub-command, where they would change nothing."""
    for name in ctx.params:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(
                f"--{name.replace('_', '-')} stands before {ctx.invoked_subcommand!r}.",
                field=name,
                value=ctx.params[name],
                remedy=f"Options of `bench {ctx.invoked_subcommand}` go behind it.",
            )


bench_app = typer.Typer()
bench_app.callback(invoke_without_command=True)(bench)
bench_app.command("serve")(bench_serve)
