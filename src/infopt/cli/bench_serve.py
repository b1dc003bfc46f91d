"""``infopt bench serve``: load on any OpenAI-compatible server, at one rate or rising ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from infopt.cli.bench_workloads import SloOption, workload_spec
from infopt.cli.console import messages, note, output, print_json
from infopt.cli.load_options import LoadOptions
from infopt.cli.models import RegistryOption, load_registry
from infopt.cli.options import Group, add_options
from infopt.cli.serve_load import ServeLoad, measure_server
from infopt.cli.values import parse_pairs, parse_spec, parse_value
from infopt.errors import ConfigError

DEFAULT_NUM_REQUESTS = 32
LOAD_OPTIONS = Group(LoadOptions, title="Load")


@add_options(load=LOAD_OPTIONS)
def bench_serve(
    *,
    server: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="Address of the server.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="The same as URL.", show_default=False)
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Sent as Authorization: Bearer KEY.", envvar="OPENAI_API_KEY", show_default=False
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Name of the model there.", show_default="the only one served"
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Model whose tokenizer makes the prompts: slug, checkpoint folder or GGUF file.",
            show_default="the server's /tokenize; without one, texts counted in words",
        ),
    ] = None,
    registry: RegistryOption = None,
    workload: Annotated[
        str, typer.Option(help="Kind of workload.", rich_help_panel="Workload")
    ] = "synthetic",
    num_requests: Annotated[
        int | None,
        typer.Option(
            help="Requests per rate.",
            min=1,
            show_default=f"{DEFAULT_NUM_REQUESTS}, all of a trace",
            rich_help_panel="Workload",
        ),
    ] = None,
    workload_option: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="Option of the workload: prompt_tokens=256, output_tokens=32, ...",
            show_default=False,
            rich_help_panel="Workload",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Trace to replay (Azure CSV or Mooncake JSONL); a rate changes its speed.",
            show_default=False,
            rich_help_panel="Workload",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Requests per second, sent whether or not the server keeps up.",
            show_default=False,
            rich_help_panel="Workload",
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            metavar="R,R,...",
            help="Rising rates: a load sweep, with the saturation point.",
            show_default=False,
            rich_help_panel="Workload",
        ),
    ] = None,
    slo: SloOption = "chat",
    extra: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Further field of every request.", show_default=False
        ),
    ] = None,
    output_file: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="JSON file for all figures.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures as JSON instead of a table.")
    ] = False,
    load: dict[str, Any],
) -> None:
    """Load a server at scheduled times, whether or not it keeps up, and measure its answers.

    Latencies count from the schedule. An answer that is not whole is a failed request: it is in no
    percentile, and against goodput.
    """
    from infopt.bench.slo import SLO

    kind = "trace" if trace else workload
    count = num_requests or (None if kind == "trace" else DEFAULT_NUM_REQUESTS)
    plan = ServeLoad(
        workload=workload_spec(kind, count, workload_option or [], trace),
        slo=SLO.from_spec(parse_spec(slo, "slo")),
        rates=_rates(rate, rates, has_own_arrivals=kind == "trace"),
        extra=parse_pairs(extra or [], "extra"),
        options=LoadOptions(**load),
    )
    load_registry(registry)
    report = measure_server(_address(server, url), plan, model, api_key, tokenizer)
    if output_file is not None:
        from infopt.results import write_json

        write_json(output_file, report.to_dict())
        note(f"wrote {output_file}")
    print_json(report.to_dict()) if as_json else _print(report)
    report.check()


def _print(report: Any) -> None:
    from infopt.cli.serve_load_table import facts, load_table, remarks

    output().print(load_table(report))
    for line in facts(report):
        output().print(escape(line), soft_wrap=True)
    for remark in remarks(report):
        messages().print(f"[yellow]note:[/] {escape(remark)}", soft_wrap=True)


def _address(server: str | None, url: str | None) -> str:
    """Return the address, given as an argument or as an option."""
    if (server is None) == (url is None):
        raise ConfigError(
            "Give the address of the server once.",
            field="url",
            value=server,
            remedy="For example: infopt bench serve http://127.0.0.1:8000 --rate 2",
        )
    return server or url or ""


def _rates(rate: float | None, rates: str | None, *, has_own_arrivals: bool) -> tuple[float, ...]:
    """Return the rates to measure; a trace has one of its own."""
    from infopt.bench.load_sweep import check_rates

    given = [text for text in (rates, None if rate is None else str(rate)) if text is not None]
    if has_own_arrivals and not given:
        return ()
    if len(given) != 1:
        raise ConfigError(
            "Give --rate or --rates.",
            field="rate",
            value=given,
            remedy="One rate in requests/s, or rising ones: --rates 1,2,4",
        )
    return tuple(check_rates(parse_value(text, "rates") for text in given[0].split(",")))
