"""``infopt eval``: the quality of any configuration, by the own suite or the harness's tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from infopt.cli.console import JsonOption, output, print_json
from infopt.cli.engine import ENGINE_OPTIONS, ConfigOption, ModelOption, build_config
from infopt.cli.models import RegistryOption, load_registry
from infopt.cli.options import add_options
from infopt.errors import ConfigError


@add_options(engine=ENGINE_OPTIONS)
def evaluate(
    *,
    model: ModelOption = None,
    config: ConfigOption = None,
    registry: RegistryOption = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Tasks of EleutherAI's harness, separated by commas; infopt_arithmetic, "
            "infopt_code and infopt_multilingual need no download. Without it the own suite runs.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most items of each harness task.", show_default=False)
    ] = None,
    num_fewshot: Annotated[
        int | None,
        typer.Option(min=0, help="Examples in the prompts of harness tasks.", show_default=False),
    ] = None,
    tier: Annotated[
        Literal["screen", "full"], typer.Option(help="How much the own suite measures.")
    ] = "screen",
    as_json: JsonOption = False,
    engine: dict[str, Any],
) -> None:
    """Measure quality: perplexity and tasks, without a download by default."""
    names = _task_names(tasks, limit=limit, num_fewshot=num_fewshot)
    engine_config = build_config(model, config, engine)
    load_registry(registry)

    from infopt.llm import LLM

    with LLM(config=engine_config) as llm:
        if names is None:
            from infopt.evals.suite import run_suite

            found = run_suite(llm, tier).to_dict()
        else:
            from infopt.evals.harness.run import run_harness

            found = run_harness(llm, names, limit=limit, num_fewshot=num_fewshot)
    if as_json:
        print_json(found)
    else:
        output().print(_suite_table(found) if tasks is None else _harness_table(found))


def _task_names(tasks: str | None, **options: int | None) -> list[str] | None:
    """Return the harness's tasks; None for the own suite, which has none of their options."""
    if tasks is None:
        for name, value in options.items():
            if value is not None:
                raise ConfigError(
                    f"--{name.replace('_', '-')} {value} needs --tasks.",
                    field=name,
                    value=value,
                    remedy="The own suite takes --tier instead.",
                )
        return None
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise ConfigError(
            f"--tasks names no task, got {tasks!r}.",
            field="tasks",
            value=tasks,
            remedy="For example: --tasks infopt_arithmetic; without --tasks the own suite runs.",
        )
    return names


def _suite_table(found: Mapping[str, Any]) -> Table:
    table = Table("measure", "value", "95 % interval", "n")
    for kind, value in found["perplexity"].items():
        table.add_row(f"perplexity on {kind}", f"{value:.3f}", "", "")
    for name, task in found["tasks"].items():
        interval = f"{task['low']:.1%} to {task['high']:.1%}"
        table.add_row(name, f"{task['score']:.1%}", interval, str(task["n"]))
    return table


def _harness_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table("task", "metric", "value", "standard error")
    for name, values in found.items():
        for key, value in values.items():
            metric, _, filtered = key.partition(",")
            if not filtered or "_stderr" in metric or not isinstance(value, int | float):
                continue
            error = values.get(f"{metric}_stderr,{filtered}")
            shown = f"{error:.4f}" if isinstance(error, float) else ""
            table.add_row(name, metric, f"{value:.4f}", shown)
    return table
