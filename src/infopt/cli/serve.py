"""``infopt serve``: models behind an OpenAI-compatible API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from infopt.cli.console import note
from infopt.cli.engine import ENGINE_OPTIONS, ConfigOption, build_config
from infopt.cli.models import RegistryOption, load_registry
from infopt.cli.options import Group, add_options
from infopt.config import EngineConfig
from infopt.serve.config import ServeConfig

SERVE_OPTIONS = Group(ServeConfig, title="Server")


@add_options(server=SERVE_OPTIONS, engine=ENGINE_OPTIONS)
def serve(
    *,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...", help="Registry slugs, checkpoint folders or GGUF files."
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="The same as MODEL; may be repeated.")
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option("--served-model-name", help="What requests call it, one per model."),
    ] = None,
    route: Annotated[
        Path | None,
        typer.Option(
            "--route", metavar="POLICY", help="Routing policy (YAML or JSON) behind the model auto."
        ),
    ] = None,
    config: ConfigOption = None,
    registry: RegistryOption = None,
    server: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Serve models until SIGTERM or Ctrl-C; a second signal does not wait for running requests.

    Several models share one loop and, evenly, the memory for keys and values.
    """
    serve_config = ServeConfig(**server)
    configs = _engine_configs([*(models or []), *(model or [])], config, engine)
    load_registry(registry)

    from infopt.serve.server import run_server, split_kv_memory

    policy = None
    if route is not None:
        from infopt.select.routing import read_policy

        policy = read_policy(route)

    run_server(
        split_kv_memory(configs),
        serve_config,
        names=served_model_name or (),
        policy=policy,
        announce=lambda url, names: note(
            f"serving {', '.join(names)} at {url}/v1, routes at {url}/docs"
        ),
    )


def _engine_configs(
    models: list[str], config: Path | None, options: dict[str, Any]
) -> list[EngineConfig]:
    """Return one configuration per model; without models, the file's or the default one."""
    return [build_config(model, config, options) for model in models or [None]]
