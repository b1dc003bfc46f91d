"""The engine options that all commands share, and how a configuration is put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from infopt.cli.console import note
from infopt.cli.options import Group
from infopt.config import EngineConfig
from infopt.errors import ConfigError, check_mapping
from infopt.yaml_input import read_yaml

DEFAULT_MODEL = "smollm2-135m-instruct-q4_1"
"""What runs when no model is named: small, free to use, and available from a package index."""

ENGINE_OPTIONS = Group(
    EngineConfig,
    title="Engine",
    skip=("model",),
    prefix="engine_",
    prefixed=("seed",),  # --seed is the sampler's
    name_keys={"speculative": "method"},
)

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Registry slug, folder with a checkpoint, or GGUF file.",
        show_default=DEFAULT_MODEL,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="YAML file with engine options, or a recommendation; options given here win over it.",
    ),
]


def build_config(
    model: str | None, config_file: Path | None, options: Mapping[str, Any]
) -> EngineConfig:
    """Merge defaults, file and options, the later ones winning.

    Raises:
        ConfigError: For an unreadable file, an unknown key or an impossible value.
    """
    values = {"model": DEFAULT_MODEL} | (read_engine_section(config_file) if config_file else {})
    if model is not None:
        values["model"] = model
    return EngineConfig.from_dict(values | dict(options))


def read_engine_section(path: Path) -> dict[str, Any]:
    """Return the engine options in a YAML file: the ``config`` of a recommendation, or the file.

    Raises:
        ConfigError: If the file cannot be read, or is a recommendation that chose nothing.
    """
    data = read_yaml(path, field="config")
    check_mapping(data, str(path))
    if "config" not in data:
        return data
    section = data["config"]
    if not isinstance(section, dict):
        raise ConfigError(
            f"{path} holds no configuration: {data.get('reason', 'config is empty')}",
            field="config",
            value=section,
            remedy="`infopt recommend` shows why.",
        )
    _warn_about_another_machine(path, data)
    return section


def _warn_about_another_machine(path: Path, recommendation: Mapping[str, Any]) -> None:
    """Say that a recommendation was measured elsewhere: it holds for that machine only."""
    measured_on = recommendation.get("hardware_id")
    if measured_on is None:
        return
    from infopt.hardware import fingerprint
    from infopt.results.identity import hardware_id

    hardware = recommendation.get("hardware")
    known = hardware if isinstance(hardware, Mapping) else {}
    machine = fingerprint()
    here = hardware_id(machine)
    if here != measured_on and not _is_part_of(known, machine):
        cpu = known.get("cpu_model") or "unknown processor"
        note(
            f"warning: {path} was measured on another machine ({measured_on}, {cpu}; this is "
            f"{here}): it may be neither the fastest here nor keep its objective. Measure again "
            "with `make run`."
        )


def _is_part_of(measured: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Tell whether a machine is this one with fewer GPUs: a measuring job sees only its own."""
    ours, all_here = measured.get("gpus"), here.get("gpus")
    if not (isinstance(ours, list) and isinstance(all_here, list) and ours):
        return False
    rest = [
        {key: machine.get(key) for key in ("cpu_model", "architecture", "num_cores", "ram_gib")}
        for machine in (measured, here)
    ]
    return rest[0] == rest[1] and Counter(map(str, ours)) <= Counter(map(str, all_here))
